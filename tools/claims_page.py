"""Writes docs/claims.md: what is widely said of KV caches beside what kvik derives or measures.

python tools/claims_page.py          write the page
python tools/claims_page.py --check  exit 1 when it is not what this command makes

Derived figures come from the planner and the presets; measured ones from the records that
`python bench/claims.py`, `python bench/waste.py` and `kvik bench serving` left in bench/results.
Nothing is measured here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from pages import write_or_check

from kvik.plan.data import layer_data, resolve
from kvik.plan.weights import weight_bytes
from kvik.recipe import Recipe
from kvik.spec import LayerSpec, ModelSpec
from kvik.spec.presets import preset_spec

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "claims.md"
TEXT = ROOT / "tools" / "claims.md.in"
RESULTS = ROOT / "bench" / "results"
GIB = 2**30
Record = dict[str, Any]
Figures = dict[str, Any]


# Derived


def kv(spec: ModelSpec, tokens: int, recipe: str = "fp16") -> int:
    """Bytes of K and V of one sequence, as `kvik plan` has them."""
    plan = resolve(Recipe.parse(recipe), spec)
    return sum(layer.nbytes for layer in layer_data(plan, spec, tokens))


def multi_head(spec: ModelSpec) -> ModelSpec:
    """The model with K and V for every query head."""
    layers = tuple(replace(layer, kv_heads=layer.heads) for layer in spec.layers)
    return replace(spec, layers=layers)


def deepseek_67b() -> ModelSpec:
    """Its config.json: 95 layers, 64 query heads over 8 KV heads of 128."""
    layer = LayerSpec("full", 64, 8, 128, 128)
    return ModelSpec("deepseek-67b", "llama", (layer,) * 95, 4096, 102_400, 8192, 22_016)


def sizes() -> Figures:
    """The facts: bytes of known models."""
    l3, l2, big = map(preset_spec, ("llama-3-8b", "llama-2-7b", "llama-2-70b"))
    found: Figures = {"l3_token": kv(l3, 1)}
    found |= {f"l3_{n}": kv(l3, n) for n in (4096, 32_768, 131_072)}
    found |= {f"l2_{n}": kv(l2, n) for n in (4096, 131_072)}
    found |= {f"big_mha_{n}": kv(multi_head(big), n) for n in (4096, 131_072)}
    found |= {f"big_{n}": kv(big, n) for n in (4096, 131_072)}
    found["big_saving"] = 1 - Fraction(kv(big, 1), kv(multi_head(big), 1))
    found["groups"], found["queries"] = l3.layers[0].kv_heads, l3.layers[0].group
    return found


def window_reach() -> Figures:
    """How far back layers with windows see, one upon the other."""
    windows = [layer.window or 0 for layer in preset_spec("mistral-7b-v0.1").layers]
    return {
        "window": windows[0],
        "window_layers": len(windows),
        "reach_said": sum(windows),
        "reach_exact": sum(window - 1 for window in windows),
    }


def latent() -> Figures:
    """MLA beside what it replaced."""
    v2, old = preset_spec("deepseek-v2"), deepseek_67b()
    layer = v2.layers[0]
    assert layer.expanded is not None
    ours, theirs = kv(v2, 1), kv(old, 1)
    return {
        "mla_token": ours,
        "old_token": theirs,
        "mla_saving_16": 1 - Fraction(ours, theirs),
        "mla_saving_6": 1 - Fraction(ours * 6, theirs * 16),
        "mla_values": layer.k_dim,
        "mla_own_mha": 1 - Fraction(layer.k_dim, layer.heads * sum(layer.expanded)),
        "mla_gqa8": 1 - Fraction(layer.k_dim, 8 * 2 * 128),
        "mla_gqa4": 1 - Fraction(layer.k_dim, 4 * 2 * 128),
        "mla_groups": Fraction(layer.k_dim, 2 * 128),
    }


def codes() -> Figures:
    """Bits of an element, and Llama-2-7B at 4,096 tokens."""
    spec = preset_spec("llama-2-7b")
    whole = kv(spec, 4096)
    found: Figures = {
        f"bits_{name}": Fraction(16 * kv(spec, 4096, recipe), whole)
        for name, recipe in (("int8", "int8"), ("int4", "int4"), ("k8v4", "int8/int4"))
    }
    # KIVI: b-bit codes in groups of 32, a 16-bit scale and a 16-bit zero each; 128 tokens in fp16.
    for bits in (2, 4):
        found[f"bits_kivi{bits}"] = bits + Fraction(32, 32)
        coded = (4096 - 128) * found[f"bits_kivi{bits}"] + 128 * 16
        found[f"kivi{bits}_4096"] = Fraction(whole, 4096 * 16) * coded
    kept = 4096 * 20 // 100
    found |= {"h2o_kept": kept, "h2o_4096": kv(spec, kept)}
    return found


def stacked() -> Figures:
    """Llama-2-7B, eight sequences of 4,096 tokens: weights and K and V, coded or not."""
    spec, batch = preset_spec("llama-2-7b"), 8
    weights = {form: weight_bytes(spec.params, form)[0] or 0 for form in ("fp16", "q4_0")}
    caches = {recipe: batch * kv(spec, 4096, recipe) for recipe in ("fp16", "int8")}
    found = {f"sum_{w}_{c}": weights[w] + caches[c] for w in weights for c in caches}
    found["saved_weights"] = weights["fp16"] - weights["q4_0"]
    found["saved_kv"] = caches["fp16"] - caches["int8"]
    return found


def recomputed(prompt: int = 1024, new: int = 256) -> Figures:
    """Tokens that go through the model to make ``new`` of them, with a cache and without."""
    kept, bare = prompt + new - 1, sum(prompt + i for i in range(new))
    return {"again_kept": kept, "again_bare": bare, "again_ratio": Fraction(bare, kept)}


def derived() -> Figures:
    """Every figure of the page that needs no measurement."""
    parts: tuple[Callable[[], Figures], ...] = (
        sizes,
        window_reach,
        latent,
        codes,
        stacked,
        recomputed,
    )
    found: Figures = {}
    for part in parts:
        found |= part()
    return found


# Measured


def records(name: str) -> list[Record]:
    """The lines of a file of results."""
    text = (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def last(found: Iterable[Record], **wanted: Any) -> Record:
    """The newest record with these values; a KeyError names what is missing."""
    fitting = [r for r in found if all(r.get(key) == value for key, value in wanted.items())]
    if not fitting:
        raise KeyError(f"no record with {wanted}: run python bench/claims.py")
    return fitting[-1]


def measured() -> Figures:
    """Every figure of the page that was measured, by the name that the page has for it."""
    claims = records("claims")
    found: Figures = {}
    for weights, short in (("as in the file", "w16"), ("Q4_0", "w4"), ("packed", "packed")):
        for cache in ("fp32", "int8", "int8/int4", "int4"):
            wanted = {"claim": "quality", "weights": weights, "cache": cache}
            if any(all(r.get(k) == v for k, v in wanted.items()) for r in claims):
                found[f"{short}_{cache.replace('/', '_')}"] = last(claims, **wanted)
    for context in (128, 512, 1024):
        found[f"bare_{context}"] = last(claims, claim="no-cache", context=context)
    for distance in (7, 8, 32, 105, 210, 211):
        found[f"reach_{distance}"] = last(claims, claim="reach", distance=distance)
    for recipe in ("fp16", "int8/int4"):
        found[f"paging_{recipe.replace('/', '_')}"] = last(claims, claim="paging", recipe=recipe)
    found["env"] = found["w16_int8"]["env"]
    waste = last(
        (r for r in records("waste") if r["trace"]["name"] == "sharegpt"), recipe="fp16+page:16"
    )
    systems = {s["system"]: s for s in waste["systems"]}
    for name, system in systems.items():
        found[f"waste_{name}"] = 1 - system["shares"]["tokens"]
        found[f"more_than_{name}"] = systems["kvik"]["concurrent_mean"] / system["concurrent_mean"]
    found["waste_env"] = waste["env"]
    serving = [r for r in records("serving") if r["rate"] == 2.0]
    theirs, ours = (
        last(serving, system="transformers"),
        last(serving, system="kvik", recipe="fp16+page:8"),
    )
    found["serving_ratio"] = ours["tokens_s"] / theirs["tokens_s"]
    found["serving_first"] = theirs["ttft"]["mean"] / ours["ttft"]["mean"]
    found["serving_env"] = ours["env"]
    return found


# The page


def related(d: Figures, m: Figures) -> Figures:
    """Figures that follow from others on the page."""
    sums = {c: m["w4_fp32"]["kl"] + m[f"w16_{c}"]["kl"] for c in ("int8", "int4")}
    return {
        "int4_over_int8": m["w16_int4"]["kl"] / m["w16_int8"]["kl"],
        "k8v4_over_int8": m["w16_int8_int4"]["kl"] / m["w16_int8"]["kl"],
        "k8v4_4096": d["l2_4096"] * d["bits_k8v4"] / 16,
        "again_new": d["again_kept"] - 1024 + 1,
        "dilution": m["reach_105"]["window_kl"] / m["reach_105"]["full_kl"],
        "mla_6_token": d["mla_token"] * 6 // 16,
        "sum_int8": sums["int8"],
        "sum_int4": sums["int4"],
        "sum_error": max(abs(1 - m[f"w4_{c}"]["kl"] / total) for c, total in sums.items()),
        "big_error": Fraction(40 * GIB, d["big_mha_4096"]),
        "big_real_error": Fraction(40 * GIB, d["big_4096"]),
    }


def page() -> str:
    """The whole page: its text with the figures in their places."""
    d, m = derived(), measured()
    text = TEXT.read_text(encoding="utf-8")
    return text.format(d=_Namespace(d), m=_Namespace(m), r=_Namespace(related(d, m)))


class _Namespace:
    """Figures under dotted names; a form says how one is written (see `_Figure`)."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def __getattr__(self, name: str) -> Any:
        value = self._figures[name]
        return _Namespace(value) if isinstance(value, dict) else _Figure(value)


class _Figure:
    """A figure with the page's own forms: gib, gb, pct, times, log; any other is Python's."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __format__(self, form: str) -> str:
        value = self.value
        if isinstance(value, list):
            return ", ".join(format(_Figure(item), form) for item in value)
        forms: dict[str, Callable[[], str]] = {
            "": lambda: f"{value:,}" if isinstance(value, int) else str(value),
            "gib": lambda: _plain(value / GIB),
            "mib": lambda: _plain(value / 2**20),
            "gb": lambda: f"{float(value) / 1e9:.2f}",
            "pct": lambda: f"{100 * float(value):.1f}",
            "num": lambda: _plain(value, 4),
            "times": lambda: f"{float(value):.0f}" if value >= 10 else f"{float(value):.1f}",
            "sci": lambda: "0" if value == 0 else f"{float(value):.2g}",
        }
        return forms[form]() if form in forms else format(float(value), form)


def _plain(value: Any, most: int = 2) -> str:
    """So many decimals at most, none where they are zeros."""
    return f"{float(value):,.{most}f}".rstrip("0").rstrip(".")


if __name__ == "__main__":
    raise SystemExit(write_or_check("claims_page.py", {PAGE: page()}))
