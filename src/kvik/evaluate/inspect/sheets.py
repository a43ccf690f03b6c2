"""The figures as CSV: one row a layer, a query head, a KV head, a channel."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

from kvik.evaluate.inspect.view import Document, with_part

Row = dict[str, Any]


def sheets(document: Document) -> dict[str, str]:
    """Names of files and their text; a figure that does not apply is an empty cell."""
    makers = {
        "layers.csv": _layers,
        "query_heads.csv": _query_heads,
        "kv_heads.csv": _kv_heads,
        "channels.csv": _channels,
    }
    return {name: _text(make(document)) for name, make in makers.items()}


def _layers(document: Document) -> Iterator[Row]:
    facts = ("layer", "kind", "window", "heads", "kv_heads", "k_dim", "v_dim")
    for layer in document["layers"]:
        row = {name: layer[name] for name in facts}
        if attention := layer["attention"]:
            row |= {name: attention[name] for name in ("queries", "seen", "sink_queries")}
        if chosen := layer["chosen"]:
            row["candidates"] = chosen["candidates"]
            row |= {f"pooled_{budget}": x for budget, x in chosen["pooled"].items()}
        if stored := layer["stored"]:
            row |= {f"rank_{stream}": x for stream, x in stored["rank"].items()}
            row |= {f"width_{stream}": x for stream, x in stored["width"].items()}
        yield row | {"why": "; ".join(layer["why"])}


def _query_heads(document: Document) -> Iterator[Row]:
    for layer in with_part(document, "attention"):
        a, group = layer["attention"], layer["heads"] // layer["kv_heads"]
        for head in range(layer["heads"]):
            row = {"layer": layer["layer"], "query_head": head, "kv_head": head // group}
            row |= {f"first_{n}": x[head] for n, x in a["sink"].items()}
            for share, spread in a["needed"].items():
                row |= {f"tokens_{share}_{name}": x[head] for name, x in spread.items()}
            row |= {f"last_{w}": x[head] for w, x in a["window"].items()}
            row |= {f"first_4_last_{w}": x[head] for w, x in a["streaming"].items()}
            yield row | {"entropy": a["entropy"][head]}


def _kv_heads(document: Document) -> Iterator[Row]:
    for layer in document["layers"]:
        chosen, stored = layer["chosen"], layer["stored"]
        for head in range(layer["kv_heads"] if chosen or stored else 0):
            row: Row = {"layer": layer["layer"], "kv_head": head}
            for part in ("kept", "beyond_sinks") if chosen else ():
                for rule, budgets in chosen[part].items():
                    row |= {f"{part}_{rule}_{b}": x[head] for b, x in budgets.items()}
            for stream, facts in stored["streams"].items() if stored else ():
                for name in ("outlier", "mean_energy", "min", "max", "std"):
                    row[f"{stream}_{name}"] = facts[name][head]
                row |= {f"{stream}_error_{way}": x[head] for way, x in facts["error"].items()}
            for part in ("neighbours", "mean_key") if stored else ():
                row |= {f"{part}_{stream}": x[head] for stream, x in stored[part].items()}
            row |= {f"output_error_{way}": x[head] for way, x in layer["output_error"].items()}
            yield row


def _channels(document: Document) -> Iterator[Row]:
    for layer in with_part(document, "stored"):
        for head in range(layer["kv_heads"]):
            found = {s: x["channels"][head] for s, x in layer["stored"]["streams"].items()}
            for channel in range(max(map(len, found.values()))):
                at: Row = {"layer": layer["layer"], "kv_head": head, "channel": channel}
                yield at | {s: x[channel] for s, x in found.items() if channel < len(x)}


def _text(rows: Iterable[Row]) -> str:
    found = list(rows)
    names = dict.fromkeys(name for row in found for name in row)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(names), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return out.getvalue()
