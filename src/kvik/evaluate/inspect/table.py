"""The figures of every layer in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from kvik.evaluate.inspect.findings import percent
from kvik.evaluate.inspect.view import (
    Document,
    Figure,
    Layer,
    at,
    by_layer,
    kept,
    needed,
    of_stream,
    sink,
    window_of,
)


@dataclass(frozen=True)
class Column:
    """One column: its head, what it means, and how a layer's cell is written ("" for none)."""

    head: str
    meaning: str
    write: Callable[[Layer], str]


def columns(document: Document) -> list[Column]:
    """What is told of each layer; all are means over its heads."""
    size = window_of(document)

    def mean(figure: Figure, write: Callable[[float], str] = percent) -> Callable[[Layer], str]:
        return lambda layer: "".join(write(value) for _, value in by_layer([layer], figure))

    def count(value: float) -> str:
        return f"{value:.0f}"

    def error(way: str) -> Callable[[Layer], str]:
        return mean(at("output_error", way))

    def rank(layer: Layer) -> str:
        stored = layer["stored"]
        if not stored or not stored["rank"]:
            return ""
        return f"{stored['rank']['k']}, {stored['rank']['v']} of {stored['width']['v']}"

    return [
        Column("kind", "what the layer sees", _kind),
        Column("first 4", "share of attention on the first 4 tokens", mean(sink())),
        Column(
            "90 % on",
            "tokens with 90 % of the median query's attention",
            mean(needed("0.9"), count),
        ),
        Column("99 % on", "the same for 99 %", mean(needed("0.99"), count)),
        Column(
            f"4 + last {size}",
            f"share of attention on the first 4 and the last {size} tokens",
            mean(at("attention", "streaming", size)),
        ),
        Column(
            "heavy fifth",
            "share of later attention (without the first 4 tokens) on the fifth of the tokens that "
            "had most by the middle",
            mean(kept("heavy")),
        ),
        Column(
            "K outlier",
            "largest channel of K before RoPE over the median one",
            mean(of_stream("k", "outlier"), lambda v: f"{v:.1f}"),
        ),
        Column("K token", "error of the output with K in 4 bits per token", error("k_token")),
        Column("K channel", "the same per channel", error("k_channel")),
        Column("V token", "error of the output with V in 4 bits per token", error("v_token")),
        Column("V channel", "the same per channel", error("v_channel")),
        Column("rank K, V", "directions with 99 % of the energy of K before RoPE and of V", rank),
    ]


def _kind(layer: Layer) -> str:
    return layer["kind"] if layer["window"] is None else f"{layer['kind']} {layer['window']:,}"


def title(document: Document) -> str:
    """What was read by what."""
    return f"{document['model']}, {document['context']:,} tokens of {document['text']}"


def make_table(document: Document) -> Table:
    """The figures as a rich table."""
    told = columns(document)
    table = Table(title=Text(title(document)), title_justify="left")
    table.add_column("layer", justify="right")
    for column in told:
        table.add_column(column.head, justify="right")
    for layer in document["layers"]:
        table.add_row(str(layer["layer"]), *[column.write(layer) for column in told])
    return table
