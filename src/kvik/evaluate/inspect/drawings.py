"""The pictures of ``kvik inspect``, by the name of the finding that they belong to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kvik.evaluate.inspect.view import (
    Document,
    Figure,
    Layer,
    at,
    by_layer,
    heads,
    kept,
    mean,
    needed,
    of_stream,
    rank_share,
    sink,
    window_of,
    windows_of,
    with_part,
)
from kvik.evaluate.pictures import Axis, Level, Picture, Series, draw_heat, draw_lines, number

LAYER = Axis("layer", whole=True)
SHARE = Axis("share of attention", least=0.0, write=lambda v: f"{100 * v:.0f} %")
NOT_SEEN = "not seen"


def draw(document: Document) -> dict[str, list[Picture]]:
    """The pictures of all findings that the document has."""
    drawn = {
        "sinks": _sinks(document),
        "concentration": _concentration(document),
        "window": _window(document),
    }
    if with_part(document, "chosen"):
        drawn["heavy"] = [_rules(document, "heavy", ("heavy", "recent", "best"))]
    if layers := with_part(document, "stored"):
        drawn["outliers"] = [_channels(layers, s) for s in ("k", "k_rope", "v")]
        drawn["ranges"] = [_ranges(document)]
        drawn["errors"] = _errors(document)
        drawn["likeness"] = [_likeness(document)]
        if with_part(document, "chosen"):
            drawn["likeness"].append(_rules(document, "distinct", ("distinct", "heavy", "small")))
        drawn["rank"] = [_rank(document)]
    drawn |= {"depth": [_depth(document)], "heads": [_heads(document)]}
    told = {finding["name"] for finding in document["findings"]}
    return {name: pictures for name, pictures in drawn.items() if name in told}


def _lines(document: Document, figures: Mapping[str, Figure]) -> list[Series]:
    """A line for each figure, with a gap at layers that lack it; lines without points are left out.

    A figure keeps its style whatever is left out.
    """
    layers, found = document["layers"], []
    for index, (label, figure) in enumerate(figures.items()):
        known = dict(by_layer([x for x in layers if x["attention"]], figure))
        if known:
            ys = [known.get(layer["layer"]) for layer in layers]
            found.append(Series(label, [x["layer"] for x in layers], ys, style=index))
    return found


def _map(document: Document, figure: Figure) -> list[list[float | None]]:
    """Rows of a heat map, layers x query heads; a layer without the figure has gaps."""
    wide = max(layer["heads"] for layer in document["layers"])
    rows: list[list[float | None]] = []
    for layer in document["layers"]:
        values = heads(layer, figure) if figure(layer) else []
        rows.append([*values, *[None] * (wide - len(values))])
    return rows


def _names(document: Document) -> tuple[list[str], list[str]]:
    layers = document["layers"]
    wide = max(layer["heads"] for layer in layers)
    return [str(layer["layer"]) for layer in layers], [str(h) for h in range(wide)]


def _sinks(document: Document) -> list[Picture]:
    rows, columns = _names(document)
    return [
        draw_heat(
            "sinks",
            "Attention on the first 4 tokens",
            "Share of attention on the first four tokens for every layer and query head.",
            rows,
            columns,
            _map(document, sink()),
            row_label="layer",
            column_label="query head",
            low=0.0,
            high=1.0,
            write=lambda v: f"{100 * v:.0f} %",
            key="share of attention",
            missing=NOT_SEEN,
        )
    ]


def _concentration(document: Document) -> list[Picture]:
    series = _lines(
        document,
        {
            "for 90 %, median query": needed("0.9"),
            "for 99 %": needed("0.99"),
            "tokens seen": at("attention", "seen"),
        },
    )
    ends = [
        dict(by_layer(with_part(document, "attention"), needed("0.9", q))) for q in ("p10", "p90")
    ]
    low, high = ([known.get(int(x), math.nan) for x in series[0].xs] for known in ends)
    first = Series(series[0].label, series[0].xs, series[0].ys, 0, low, high)
    return [
        draw_lines(
            "concentration",
            "Tokens that carry 90 % of attention",
            "How few tokens hold 90 and 99 percent of a query's attention, by layer, mean over "
            "heads; the bars reach from the tenth to the ninetieth percentile of queries.",
            [first, *series[1:]],
            LAYER,
            Axis("tokens", "log2"),
        )
    ]


def _window(document: Document) -> list[Picture]:
    size = window_of(document)
    figures = {f"last {w}": at("attention", "window", w) for w in windows_of(document)}
    figures[f"first 4 and last {size}"] = at("attention", "streaming", size)
    return [
        draw_lines(
            "window",
            "Attention within the last tokens",
            "Share of attention on the last W tokens by layer, and on those and the first four.",
            _lines(document, figures),
            LAYER,
            SHARE,
        )
    ]


LABELS = {
    "heavy": "most attention so far",
    "recent": "the latest",
    "best": "best in hindsight",
    "distinct": "least typical keys",
    "small": "shortest keys",
}


def _rules(document: Document, name: str, rules: Sequence[str]) -> Picture:
    series = _lines(document, {LABELS[rule]: kept(rule) for rule in rules})
    return draw_lines(
        f"kept-{name}",
        "Later attention on a fifth of the tokens",
        "Share of the later attention, without the first four tokens, that falls on a fifth of "
        "the tokens before the middle, by the rule that chose them, for each layer.",
        series,
        LAYER,
        SHARE,
        levels=[Level("chance", 0.2)],
    )


STREAMS = {"k": "K before RoPE", "k_rope": "K after RoPE", "v": "V"}


def _channels(layers: Sequence[Layer], stream: str) -> Picture:
    """Of each layer the head whose largest channel stands out most, so that rows stay few."""
    rows, values = [], []
    for layer in layers:
        found = layer["stored"]["streams"][stream]
        head = max(range(layer["kv_heads"]), key=lambda h: found["outlier"][h])
        channels = found["channels"][head]
        middle = sorted(channels)[(len(channels) - 1) // 2] or math.inf
        rows.append(f"{layer['layer']}" if layer["kv_heads"] == 1 else f"{layer['layer']}.{head}")
        values.append([max(0.0, math.log2(max(c / middle, 1e-9))) for c in channels])
    return draw_heat(
        f"channels-{stream.replace('_', '-')}",
        f"Channels of {STREAMS[stream]}",
        "Magnitude of each channel over that of the median channel, for the head of every layer "
        "whose largest channel stands out most.",
        rows,
        [str(c) for c in range(max(len(row) for row in values))],
        [[*row, *[None] * (max(map(len, values)) - len(row))] for row in values],
        row_label="layer" if all(x["kv_heads"] == 1 for x in layers) else "layer.head",
        column_label="channel",
        low=0.0,
        high=6.0,
        write=lambda v: f"{2**v:.0f} x",
        key="magnitude over the median channel's",
        missing="no channel",
    )


def _ranges(document: Document) -> Picture:
    def most(stream: str) -> Figure:
        def of(layer: Layer) -> float | None:
            if not layer["stored"]:
                return None
            found = layer["stored"]["streams"][stream]
            return float(max(*found["max"], *(-x for x in found["min"])))

        return of

    figures: dict[str, Figure] = {}
    for stream in ("k", "v"):
        figures[f"{STREAMS[stream]}, largest"] = most(stream)
        figures[f"{STREAMS[stream]}, deviation"] = of_stream(stream, "std")
    return draw_lines(
        "ranges",
        "Largest magnitude and deviation",
        "The largest magnitude and the standard deviation of K before RoPE and of V by layer.",
        _lines(document, figures),
        LAYER,
        Axis("magnitude", "log"),
    )


def _errors(document: Document) -> list[Picture]:
    ways = {
        "k_token": "K, per token",
        "k_channel": "K, per channel",
        "k_channel_before": "K, before RoPE",
        "v_token": "V, per token",
        "v_channel": "V, per channel",
    }
    error = Axis("error over energy", "log", write=lambda v: f"{100 * v:g} %")
    output = {label: at("output_error", way) for way, label in ways.items()}
    itself = {
        "K, per token": of_stream("k_rope", "error", "token"),
        "K, per channel": of_stream("k_rope", "error", "channel"),
        "K, before RoPE": of_stream("k", "error", "channel"),
        "V, per token": of_stream("v", "error", "token"),
        "V, per channel": of_stream("v", "error", "channel"),
    }
    return [
        draw_lines(
            "errors-output",
            "4 bits: error of the attention output",
            "Squared error of the attention output over its energy when only K, or only V, is "
            "coded in 4 bits, by layer.",
            _lines(document, output),
            LAYER,
            error,
        ),
        draw_lines(
            "errors-codes",
            "4 bits: error of K and V themselves",
            "Squared error of the 4-bit codes over the energy of K and V, by layer.",
            _lines(document, itself),
            LAYER,
            error,
        ),
    ]


def _likeness(document: Document) -> Picture:
    return draw_lines(
        "likeness",
        "How alike keys are",
        "Mean cosine between the keys of neighbouring tokens, before and after RoPE, and between "
        "each key and the mean key, by layer.",
        _lines(
            document,
            {
                "next token, before RoPE": at("stored", "neighbours", "k"),
                "next token, after RoPE": at("stored", "neighbours", "k_rope"),
                "mean key, after RoPE": at("stored", "mean_key", "k_rope"),
            },
        ),
        LAYER,
        Axis("cosine", least=0.0, write=number),
    )


def _rank(document: Document) -> Picture:
    names = {**STREAMS, "kv": "K (before) and V together"}
    return draw_lines(
        "rank",
        "Directions that hold 99 % of the energy",
        "Share of the directions of K and V, all heads of a layer together, that hold 99 percent "
        "of their energy, by layer.",
        _lines(
            document,
            {label: rank_share(stream) for stream, label in names.items()},
        ),
        LAYER,
        Axis("share of directions", least=0.0, write=lambda v: f"{100 * v:.0f} %"),
    )


def _depth(document: Document) -> Picture:
    layers = with_part(document, "attention")
    kinds = {"all layers": layers}
    if len({layer["window"] for layer in layers}) > 1:
        kinds = {
            "layers that see all": [x for x in layers if x["window"] is None],
            "layers with a window": [x for x in layers if x["window"] is not None],
        }
    series = [
        Series(
            label,
            [x["layer"] for x in found],
            [mean(x["attention"]["entropy"]) for x in found],
            low=[min(x["attention"]["entropy"]) for x in found],
            high=[max(x["attention"]["entropy"]) for x in found],
        )
        for label, found in kinds.items()
    ]
    return draw_lines(
        "depth",
        "Entropy of attention by layer",
        "Mean entropy of attention by layer; the bars reach from the narrowest to the widest head.",
        series,
        LAYER,
        Axis("entropy (nats)", least=0.0),
    )


def _heads(document: Document) -> Picture:
    rows, columns = _names(document)
    values = _map(document, needed("0.9"))
    most = max(v for row in values for v in row if v is not None)
    return draw_heat(
        "heads",
        "Tokens a head needs for 90 % of attention",
        "Tokens that hold 90 percent of the attention of the median query, for every layer and "
        "query head.",
        rows,
        columns,
        [[None if v is None else math.log2(max(1.0, v)) for v in row] for row in values],
        row_label="layer",
        column_label="query head",
        low=0.0,
        high=max(1.0, math.log2(most)),
        write=lambda v: f"{2**v:.0f}",
        key="tokens",
    )
