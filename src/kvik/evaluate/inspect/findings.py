"""What the figures of a model say about each technique, in sentences made from the numbers.

A sentence says what was measured and what it would mean for a recipe. It does not say what quality
a recipe has: that is what ``kvik compare`` measures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from kvik.evaluate.inspect.view import (
    BUDGET,
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
    with_part,
)


@dataclass(frozen=True)
class Finding:
    """``rests``: what technique rests on this; ``figure``: what it is here; ``means``: for whom."""

    name: str
    title: str
    rests: str
    figure: str
    means: str


def findings(document: Document) -> list[Finding]:
    """All that apply to the model, in the order in which they are read."""
    return [
        Finding(name, title, rests, *said)
        for name, title, rests, say in _ALL
        if (said := say(document)) is not None
    ]


def percent(share: float) -> str:
    """38 %, 4.2 %, 0.03 %."""
    value = 100 * share
    digits = 0 if value >= 9.95 or value == 0 else 1 if value >= 0.095 else 2
    return f"{value:.{digits}f} %"


def _times(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"


def _average(found: Sequence[tuple[int, float]]) -> float:
    return mean([value for _, value in found])


def _over(layers: Sequence[Layer], figure: Figure) -> float:
    """Mean over heads, then over layers."""
    return _average(by_layer(layers, figure))


def _ends(found: Sequence[tuple[int, float]], write: Callable[[float], str]) -> str:
    """From the least to the most: ``from 2 % in layer 0 to 52 % in layer 18``."""
    (low, least), (high, most) = (end(found, key=lambda f: f[1]) for end in (min, max))
    return f"from {write(least)} in layer {low} to {write(most)} in layer {high}"


def _sinks(document: Document) -> tuple[str, str] | None:
    layers = with_part(document, "attention")
    first, four = by_layer(layers, sink(1)), by_layer(layers, sink())
    if not four:
        return (
            "No layer sees the first tokens any more in the second half of this text.",
            "The model's own windows end before them, so sinks would hold nothing.",
        )
    seen = mean([x["attention"]["seen"] for x in layers if sink()(x)])
    share = _average(four)
    figure = (
        f"{percent(_average(first))} of the attention rests on the first token and "
        f"{percent(share)} on the first 4, {_ends(four, percent)}; spread evenly, 4 tokens would "
        f"have {percent(4 / seen)}."
    )
    if len(four) < len(layers):
        figure += f" {len(layers) - len(four)} of {len(layers)} layers see them no more."
    if share >= 0.05:
        return figure, "A window alone would take that away: write sinks:4 beside any window."
    return figure, "Little rests on them here; sinks:4 beside a window costs four tokens."


def _concentration(document: Document) -> tuple[str, str] | None:
    layers = with_part(document, "attention")
    most, nearly = by_layer(layers, needed("0.9")), _over(layers, needed("0.99"))
    seen = mean([layer["attention"]["seen"] for layer in layers])
    figure = (
        f"The median query finds 90 % of its attention on {_average(most):.0f} of the {seen:.0f} "
        f"tokens that it sees, {_ends(most, lambda v: f'{v:.0f}')}, and 99 % on "
        f"{nearly:.0f}."
    )
    if _average(most) < 0.25 * seen:
        return figure, (
            "So few tokens would do for each query, but not the same ones: what an evicting "
            "recipe can reach depends on whether they are known in time."
        )
    return figure, "Attention is spread wide here: dropping tokens loses some, whatever the rule."


def _window(document: Document) -> tuple[str, str] | None:
    layers, size = with_part(document, "attention"), window_of(document)
    alone = by_layer(layers, at("attention", "window", size))
    both = by_layer(layers, at("attention", "streaming", size))
    worst, least = min(both, key=lambda f: f[1])
    return (
        f"The last {size} tokens hold {percent(_average(alone))} of the attention, those and the "
        f"first four {percent(_average(both))}, {_ends(both, percent)}.",
        f"sinks:4+window:{size} would leave {percent(1 - _average(both))} of this attention "
        f"without its tokens, and {percent(1 - least)} in layer {worst}; a fact that only stands "
        "outside the window is lost, whatever the average.",
    )


def _heavy(document: Document) -> tuple[str, str] | None:
    layers = with_part(document, "chosen")
    if not layers:
        return None
    heavy, recent, best = (_over(layers, kept(rule)) for rule in ("heavy", "recent", "best"))
    whole = _over(layers, kept("heavy", "kept"))
    figure = (
        f"The fifth of the tokens that had most attention by the middle gets {percent(whole)} of "
        f"what later queries give to the tokens before it. Without the first 4 it is "
        f"{percent(heavy)}; the latest fifth gets {percent(recent)}, the best choice in hindsight "
        f"{percent(best)}, chance 20 %."
    )
    better = sum(
        a > b
        for (_, a), (_, b) in zip(
            by_layer(layers, kept("heavy")),
            by_layer(layers, kept("recent")),
            strict=True,
        )
    )
    count = f"in {better} of {len(layers)} layers"
    if heavy > recent + 0.05:
        return figure, (
            f"Heavy hitters persist here and beat recency {count}: choosing by accumulated "
            "attention has something to hold on to."
        )
    if heavy < 0.3:
        return figure, "They hardly persist beyond the sinks: sinks and a window keep as much."
    return figure, (
        f"They persist, but beat recency only {count}: much of what they keep, sinks and a window "
        "keep too."
    )


def _outliers(document: Document) -> tuple[str, str] | None:
    layers = with_part(document, "stored")
    if not layers:
        return None
    k, turned, v = (
        by_layer(layers, of_stream(stream, "outlier")) for stream in ("k", "k_rope", "v")
    )
    above = [found for x in layers for found in x["stored"]["streams"]["k"]["outlier_channels"]]
    figure = (
        f"The largest channel of K has {_times(_average(k))} times the magnitude of the median one "
        f"before RoPE, {_ends(k, _times)}, and {_times(_average(turned))} times after it; "
        f"{sum(map(bool, above))} of {len(above)} KV heads have one above 4 times. In V it is "
        f"{_times(_average(v))} times."
    )
    if _average(k) > 4:
        return figure, (
            "A scale shared by the channels of a token has to span these: give K a scale per "
            "channel, or more bits than V, as int8/int4 does."
        )
    return figure, "K has no channel that would spoil a scale shared with it: int4 may do for K."


def _ranges(document: Document) -> tuple[str, str] | None:
    layers = with_part(document, "stored")
    if not layers:
        return None

    def span(stream: str) -> str:
        found = [x["stored"]["streams"][stream] for x in layers]
        least, most = min(min(x["min"]) for x in found), max(max(x["max"]) for x in found)
        return f"from {least:.3g} to {most:.3g}"

    k, v = (_over(layers, of_stream(stream, "std")) for stream in ("k", "v"))
    steady, steady_v = (_over(layers, of_stream(stream, "mean_energy")) for stream in ("k", "v"))
    figure = (
        f"K lies {span('k')} with a standard deviation of {k:.3g} on average, V {span('v')} with "
        f"{v:.3g}. The mean over the tokens holds {percent(steady)} of the energy of K and "
        f"{percent(steady_v)} of that of V."
    )
    if steady > 0.5:
        return figure, (
            "Most of K is the same for every token: coding what is left after subtracting that "
            "would need fewer bits for the same error."
        )
    return figure, "K differs from token to token: subtracting its mean would gain little."


def _errors(document: Document) -> tuple[str, str] | None:
    layers = [x for x in with_part(document, "stored") if x["output_error"]]
    if not layers:
        return None

    ways = ("token", "channel", "channel_before")
    k = {way: _over(layers, at("output_error", f"k_{way}")) for way in ways}
    v = {way: _over(layers, at("output_error", f"v_{way}")) for way in ways[:2]}
    itself = {way: _over(layers, of_stream("v", "error", way)) for way in v}
    figure = (
        f"K in 4 bits changes the attention output by {percent(k['token'])} of its energy with a "
        f"scale per token, {percent(k['channel'])} with one per channel and "
        f"{percent(k['channel_before'])} when coded before RoPE; V by {percent(v['token'])} per "
        f"token and {percent(v['channel'])} per channel."
    )
    says = [
        "K is better coded per channel"
        if k["channel"] < k["token"]
        else "K gains nothing from a scale per channel",
        "V per token" if v["token"] < v["channel"] else "V too",
    ]
    means = f"{says[0]}, {says[1]}"
    if v["token"] < v["channel"] and itself["channel"] < itself["token"]:
        means += (
            f", although V itself is closer per channel ({percent(itself['channel'])} against "
            f"{percent(itself['token'])}): what counts is the output"
        )
    return figure, f"{means}. kvik's int4 codes per token, so int8/int4 spares what K loses."


def _likeness(document: Document) -> tuple[str, str] | None:
    layers = [x for x in with_part(document, "stored") if x["chosen"]]
    if not layers:
        return None
    before, after, centre = (
        _over(layers, at("stored", *path))
        for path in (("neighbours", "k"), ("neighbours", "k_rope"), ("mean_key", "k_rope"))
    )
    each = by_layer(layers, kept("distinct"))
    above = sum(value > 0.2 for _, value in each)
    figure = (
        f"The key of a token and that of the next have a cosine of {before:.2f} before RoPE and "
        f"{after:.2f} after it, a key and the mean key {centre:.2f}. Without the first 4, the "
        f"fifth of the tokens with the least typical keys gets {percent(_average(each))} of the "
        f"later attention, {_ends(each, percent)}; chance is 20 %."
    )
    count = f"in {above} of {len(layers)} layers they get more than chance gives"
    if _average(each) > 0.3:
        return figure, f"Keys alone say something about what will be wanted: {count}."
    return figure, f"Keys alone are a poor guide to what will be wanted here: {count}."


def _rank(document: Document) -> tuple[str, str] | None:
    layers = with_part(document, "stored")
    shares = {name: by_layer(layers, rank_share(name)) for name in ("k", "k_rope", "v", "kv")}
    if not shares["k"]:
        return None
    k, turned, v, both = (_average(found) for found in shares.values())
    figure = (
        f"99 % of the energy is in {percent(k)} of the directions of K before RoPE, "
        f"{_ends(shares['k'], percent)}, in {percent(turned)} after it, in {percent(v)} of those "
        f"of V and in {percent(both)} of both together."
    )
    if k < 0.6 and v > 0.6:
        means = "K before RoPE is of low rank and V is not: a shared latent has to be sized for V"
    elif both < 0.6:
        means = "K and V together are of low rank: a latent cache has something to take away"
    else:
        means = "K and V fill most of their directions: little can be left out without retraining"
    return figure, f"{means}. Energy is not quality: small directions can decide."


def _depth(document: Document) -> tuple[str, str] | None:
    layers = with_part(document, "attention")
    windows = [layer["window"] for layer in layers]
    # Layers that see differently cannot be compared: the largest group that sees alike is taken.
    window = max(dict.fromkeys(windows), key=windows.count)
    layers = [layer for layer in layers if layer["window"] == window]
    which = "layers that see all" if window is None else f"layers with a window of {window:,}"
    if len(layers) < 3:
        return None
    spread = [value for _, value in by_layer(layers, at("attention", "entropy"))]
    third = len(spread) // 3
    first, last = mean(spread[:third]), mean(spread[-third:])
    steady = rank_correlation(spread)
    figure = (
        f"Attention has an entropy of {first:.2f} nats in the first third of the {which} and "
        f"{last:.2f} in the last; its rank correlation with depth is {steady:.2f} over "
        f"{len(layers)} layers."
    )
    if len(layers) < 6:
        return figure, f"{len(layers)} layers are too few to call it a trend."
    if steady < -0.5 and last < first - 0.2:
        return (
            figure,
            "On the whole it narrows with depth, as PyramidKV assumes; single layers differ.",
        )
    if steady > 0.5 and last > first + 0.2:
        return (
            figure,
            "On the whole it widens with depth, against what PyramidKV assumes.",
        )
    return figure, "There is no steady trend: budgets that fall with depth have no basis here."


def _heads(document: Document) -> tuple[str, str] | None:
    layers = with_part(document, "attention")
    many = [x for x in layers if x["heads"] > 1]
    if not many:
        return None
    counts = [(x["layer"], heads(x, needed("0.9"))) for x in many]
    apart = [(layer, max(each) / min(each)) for layer, each in counts]
    figure = (
        "For 90 % of its attention the widest query head of a layer needs "
        f"{_times(median([value for _, value in apart]))} times the tokens of the narrowest, in "
        f"the median layer; {_ends(apart, _times)}."
    )
    shared = [x for x in with_part(document, "chosen") if x["kv_heads"] > 1]
    if not shared:
        return figure, (
            "But there is one KV head a layer, which all its queries share: a budget cannot be "
            "shared out between heads."
        )
    even = _over(shared, kept("heavy", "kept"))
    pooled = _over(shared, at("chosen", "pooled", BUDGET))
    figure += (
        f" A fifth of the tokens, chosen by accumulated attention, keeps {percent(even)} of the "
        f"later attention with the same number for every KV head, and {percent(pooled)} when the "
        "heads of a layer share it out."
    )
    if pooled > even + 0.02:
        return figure, "Sharing budgets out between heads, as Ada-KV does, would pay here."
    return figure, "Sharing budgets out between heads would gain little at this budget."


def rank_correlation(values: Sequence[float]) -> float:
    """Spearman's correlation of ``values`` with their order; 0 where they are all the same."""
    import numpy as np

    if len(set(values)) < 2:
        return 0.0
    array = np.asarray(values)
    # Equal values share the mean of their ranks.
    ranks = (array[:, None] > array).sum(1) + ((array[:, None] == array).sum(1) - 1) / 2
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])


_ALL: tuple[tuple[str, str, str, Callable[[Document], tuple[str, str] | None]], ...] = (
    (
        "sinks",
        "Attention sinks",
        "StreamingLLM keeps the first tokens because attention rests on them, whatever they say.",
        _sinks,
    ),
    (
        "concentration",
        "How few tokens carry attention",
        "Every technique that drops or skips tokens (H2O, TOVA, SnapKV, Quest) rests on attention "
        "being concentrated.",
        _concentration,
    ),
    (
        "window",
        "What a window keeps",
        "Windows and StreamingLLM rest on most attention being near, or on the first tokens.",
        _window,
    ),
    (
        "heavy",
        "Do heavy hitters persist?",
        "H2O keeps the tokens that had most attention so far because it expects them to get it "
        "again.",
        _heavy,
    ),
    (
        "outliers",
        "Outlier channels",
        "KIVI and KVQuant code K per channel, and KVQuant before RoPE, because few channels of K "
        "are far larger than the others.",
        _outliers,
    ),
    (
        "ranges",
        "Ranges of K and V",
        "What a code must span decides its error; centring rests on a part of K that is the same "
        "for all tokens.",
        _ranges,
    ),
    (
        "errors",
        "Four bits: per token or per channel",
        "KIVI codes K per channel and V per token, at the same bytes.",
        _errors,
    ),
    (
        "likeness",
        "Keys that are alike",
        "KeyDiff keeps the tokens whose keys are least like the mean key, without looking at "
        "attention, because keys are much alike and those apart are expected to be wanted.",
        _likeness,
    ),
    (
        "rank",
        "Effective rank",
        "MLA and other latent caches rest on K and V of all heads lying in few directions.",
        _rank,
    ),
    (
        "depth",
        "Layers differ",
        "PyramidKV gives early layers more tokens because it expects attention to narrow with "
        "depth.",
        _depth,
    ),
    (
        "heads",
        "Heads differ",
        "Ada-KV shares a layer's budget out between its heads because they need different numbers "
        "of tokens.",
        _heads,
    ),
)
