"""The pictures of a comparison, each with the words that go under it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvik.evaluate.pictures import (
    Axis,
    Level,
    Picture,
    Point,
    Series,
    Spot,
    draw_heat,
    draw_lines,
    draw_scatter,
    draw_spans,
    nats,
    size,
)
from kvik.machine import human_bytes

Result = Mapping[str, Any]
# KL below this is rounding, and drawn as such.
LEAST_KL = 1e-6
# Five digits drawn by lot: the probability that a guess has.
CHANCE = -11.5


@dataclass(frozen=True)
class Chart:
    """A picture and its caption."""

    picture: Picture
    caption: str


@dataclass(frozen=True)
class Charts:
    """All of a comparison: figures, needle maps, maps of the tokens that are kept."""

    figures: list[Chart]
    needles: list[Chart]
    kept: list[Chart]

    def __iter__(self) -> Iterator[Chart]:
        return iter((*self.figures, *self.needles, *self.kept))


def draw(comparison: Mapping[str, Any]) -> Charts:
    """Every picture that the comparison has figures for; a failed recipe is in none."""
    # A recipe looks the same in all of them: its style is its place in the table.
    fine = [(i, r) for i, r in enumerate(comparison["results"]) if "error" not in r]
    if not fine:
        return Charts([], [], [])
    figures = [
        _memory(comparison, fine),
        _quality(comparison, fine),
        _speed(comparison, fine),
        _layers(comparison, fine),
    ]
    cells = comparison["needle"]["cells"]
    needles = [_needles(comparison, i, r) for i, r in fine] if cells else []
    return Charts(figures, needles, list(_kept(comparison, fine)))


def _memory(comparison: Mapping[str, Any], fine: Sequence[tuple[int, Result]]) -> Chart:
    at, weights = comparison["growth"]["contexts"], comparison["weights_bytes"]
    series = [Series(r["recipe"], at, _stored(r["growth_bytes"]), i) for i, r in fine]
    crossed = {r["recipe"]: r["outgrows_weights_at"] for _, r in fine}
    spots = [Spot(n, weights) for n in crossed.values() if n is not None and n <= at[-1]]
    levels = [] if weights is None else [Level("weights", weights)]
    caption = f"Planned bytes of K and V for one sequence, up to {at[-1]:,} tokens."
    if weights is None:
        caption += " The size of the weights is not known."
    else:
        found = [f"{name} at {n:,} tokens" for name, n in crossed.items() if n is not None]
        never = [name for name, n in crossed.items() if n is None]
        caption += f" The weights take {human_bytes(weights)}."
        caption += f" The cache outgrows them with {_listed(found)}." if found else ""
        caption += f" It never does with {_listed(never)}." if never else ""
    picture = draw_lines(
        "memory",
        "Memory against context",
        "Planned KV bytes of every recipe against the tokens of context, both logarithmic, with "
        "the bytes of the weights as a horizontal line.",
        series,
        Axis("tokens of context", "log2"),
        Axis("KV bytes", "log2", size),
        levels=levels,
        spots=spots,
        spots_label="outgrows weights",
        markers=False,
    )
    return Chart(picture, caption)


def _stored(growth: Sequence[int]) -> list[int | None]:
    """Bytes as a logarithmic axis takes them: a gap where nothing is stored."""
    return [n or None for n in growth]


def _quality(comparison: Mapping[str, Any], fine: Sequence[tuple[int, Result]]) -> Chart:
    points = [Point(r["recipe"], r["measured_bytes"], r["kl_mean"], i) for i, r in fine]
    some = all(p.x > 0 for p in points)
    picture = draw_scatter(
        "quality",
        "Quality against bytes",
        "Each recipe as a point: KV bytes after the context, and the mean KL divergence from the "
        "full cache. The dashed line joins the recipes that no other beats on both.",
        points,
        Axis(f"KV bytes at {comparison['context']:,} tokens", "log2" if some else "linear", size),
        Axis("KL, nats (less is better)", "log", nats, floor=LEAST_KL, under="≤1e-6"),
    )
    scored = comparison["quality"]["scored"]
    return Chart(
        picture,
        f"Mean KL(full || this) over {scored:,} scored tokens. The dashed line joins the recipes "
        "that no other beats in both bytes and KL.",
    )


def _speed(comparison: Mapping[str, Any], fine: Sequence[tuple[int, Result]]) -> Chart:
    at = comparison["speed"]["contexts"]
    picture = draw_lines(
        "speed",
        "Speed against context",
        "Measured tokens per second of decoding, one by one, against the tokens of context.",
        [Series(r["recipe"], at, r["decode_curve"], i) for i, r in fine],
        Axis("tokens of context", "log2"),
        Axis("decode tok/s", least=0.0),
    )
    steps = comparison["speed"]["steps"]
    return Chart(
        picture,
        f"Median of at most {steps} single steps at the last point and fewer before it, one run "
        "of each: whatever else the machine does shows.",
    )


def _layers(comparison: Mapping[str, Any], fine: Sequence[tuple[int, Result]]) -> Chart:
    layers = range(len(fine[0][1]["layer_bytes"]))
    picture = draw_lines(
        "layers",
        "Bytes of each layer",
        "Allocated KV bytes of every layer of the model after the context, for each recipe.",
        [Series(r["recipe"], layers, r["layer_bytes"], i) for i, r in fine],
        Axis("layer", whole=True),
        Axis("KV bytes", "linear", size, least=0.0),
        shape="step",
        markers=False,
    )
    return Chart(
        picture,
        f"Allocated after {comparison['context']:,} tokens: each layer's share of the pages. "
        "Tables are not in it. Recipes with the same bytes lie on one another.",
    )


def _needles(comparison: Mapping[str, Any], index: int, result: Result) -> Chart:
    asked = comparison["needle"]
    lengths = sorted({cell["length"] for cell in asked["cells"]})
    depths = sorted({cell["depth"] for cell in asked["cells"]})
    found: dict[tuple[float, int], tuple[float, str]] = {}
    hits = 0
    for cell, counted, got in zip(
        asked["cells"], asked["counted"], result["needle_cells"], strict=True
    ):
        if counted:
            hits += got["hit"]
            mark = "✓" if got["hit"] else "✗"
            place = cell["depth"], cell["length"]
            found[place] = got["logprob"], f"{mark} {got['logprob']:.1f}"
    picture = draw_heat(
        f"needles-{index}-{slug(result['recipe'])}",
        f"Needles: {result['recipe']}",
        f"Where {result['recipe']} finds a number hidden in a text: rows are depths of the text, "
        "columns its lengths. Each cell tells hit or miss and the log-probability of the answer.",
        [f"{depth:.0%}" for depth in depths],
        [f"{length:,}" for length in lengths],
        [[found.get((d, n), (None, ""))[0] for n in lengths] for d in depths],
        texts=[[found.get((d, n), (None, ""))[1] for n in lengths] for d in depths],
        row_label="depth",
        column_label="tokens",
        low=CHANCE,
        high=0.0,
        key="log-probability of the answer, nats",
    )
    count = sum(asked["counted"])
    caption = f"Found {hits} of the {count} numbers that the full cache finds."
    return Chart(picture, caption if count else "The full cache finds none: nothing counts.")


def _kept(comparison: Mapping[str, Any], fine: Sequence[tuple[int, Result]]) -> Iterator[Chart]:
    """One map for all recipes that keep the same; none for those that keep everything."""
    context = comparison["context"]
    maps: dict[str, list[Result]] = {}
    for _, result in fine:
        if any(part["spans"] != [[0, context]] for part in result["kept"]):
            maps.setdefault(repr(rows_of(result["kept"])), []).append(result)
    for number, alike in enumerate(maps.values()):
        rows = rows_of(alike[0]["kept"])
        names = _listed([r["recipe"] for r in alike])
        share = sum(b - a for _, spans in rows for a, b in spans) / (context * max(len(rows), 1))
        picture = draw_spans(
            f"kept-{number}-{slug(alike[0]['recipe'])}",
            f"Kept tokens: {names}",
            f"The positions that each layer still holds after {context:,} tokens with {names}.",
            [label for label, _ in rows],
            [spans for _, spans in rows],
            context,
            row_label="layer" if all("." not in label for label, _ in rows) else "layer.head",
            column_label="position",
        )
        yield Chart(
            picture,
            f"{names}: read from the cache after {context:,} tokens, {share:.1%} of all positions. "
            "Pages are whole, so up to a page more than a query sees.",
        )


def rows_of(kept: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[tuple[int, int]]]]:
    """A row for each layer, or each head of one, in order: its label and what it holds."""
    rows = []
    for part in kept:
        spans = [(a, b) for a, b in part["spans"]]
        head = -1 if part["head"] is None else part["head"]
        rows += [(layer, head, spans) for layer in part["layers"]]
    rows.sort(key=lambda row: row[:2])
    return [(f"{layer}" if head < 0 else f"{layer}.{head}", s) for layer, head, s in rows]


def slug(recipe: str) -> str:
    """A recipe as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", recipe.lower()).strip("-")[:40]


def _listed(words: Sequence[str]) -> str:
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
