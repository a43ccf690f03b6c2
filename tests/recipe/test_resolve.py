"""From a recipe and a model to a plan per layer, or to every reason why not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from tests import tracers

from kvik.errors import RecipeError
from kvik.recipe import Amount, Kept, Plan, Recipe, Retention, Slot, Stage, arg
from kvik.recipe.stage import REGISTRY
from kvik.spec.model import LayerSpec, ModelSpec, Rope
from kvik.stages.floats import Float
from kvik.stages.ints import Int

assert tracers.Heavy.names  # importing them registered them

FULL = LayerSpec("full", 9, 3, 64, 64, rope=Rope(64, 10_000.0))
SLIDING = LayerSpec("sliding", 4, 1, 256, 256, window=512, rope=Rope(256, 10_000.0))
GLOBAL = replace(SLIDING, kind="full", window=None)
LATENT = LayerSpec("latent", 16, 1, 576, 512, rope=Rope(64, 1e4, "interleaved", offset=512))
STATE = LayerSpec("state", 2, 2, 0, 0, state_shape=(2, 16, 16))


def model(*layers: LayerSpec) -> ModelSpec:
    return ModelSpec("test", "llama", layers, context=8192, vocab=96, hidden=48, ffn=64)


DENSE = model(*[FULL] * 30)
GEMMA = model(*([SLIDING] * 5 + [GLOBAL]) * 3)


def resolve(text: str, spec: ModelSpec = DENSE) -> Plan:
    return Recipe.parse(text).resolve(spec)


def reasons(text: str, spec: ModelSpec = DENSE) -> tuple[str, ...]:
    with pytest.raises(RecipeError) as caught:
        resolve(text, spec)
    assert str(caught.value) == "; ".join(caught.value.reasons)
    return caught.value.reasons


REFUSED = {
    "int8+int4": ["'int4' and 'int8' all set the codec of a layer; keep one of them"],
    "page:8+page:16": ["'page:16' and 'page:8' all set the page size of a layer; keep one of them"],
    "window:8+window:9+sinks:4": [
        "'window:8' and 'window:9' say the same thing twice; keep one of them"
    ],
    "sinks:4": ["'sinks:4' alone keeps nothing of the present; add window:N"],
    "heavy:20+spread:12": [
        "'heavy:20' and 'spread:12' cannot share a layer: each decides what stays; keep one"
    ],
    "heavy:20+sinks:4+window:20": [
        "'heavy:20' and 'sinks:4' and 'window:20' cannot share a layer: each decides what stays; "
        "keep one"
    ],
    "int8:group=48": [
        "int8:group=48: groups of 48 do not divide a head dim of 64; "
        "write group=N with N a divisor of 64"
    ],
    "int8/int4:group=128": [
        "int4:group=128: groups of 128 do not divide a head dim of 64; "
        "write group=N with N a divisor of 64"
    ],
    "int8@30": [
        "int8@30: layers 30 do not fit a model of 30 layers; "
        "write 0 to 29, or -1 to -30 from the end"
    ],
    "none/int8": ["'none' cannot be half of 'none/int8'; write 'none' for both K and V"],
    "int8/none": ["'none' cannot be half of 'int8/none'; write 'none' for both K and V"],
    "none+window:8": ["'none' stores nothing, so 'window:8' cannot apply; write one or the other"],
    "none+page:8+sinks:1+window:8": [
        "'none' stores nothing, so 'sinks:1' and 'window:8' and 'page:8' cannot apply; "
        "write one or the other"
    ],
    "none@0+int8": ["'none' works for all layers or for no layer; write it without @"],
    "perchannel:8,residual=5+window:12": [
        "perchannel holds up to 13 tokens in full precision, more than the 12 that stay; "
        "write a window of at least 13 or another codec"
    ],
    "perchannel+heavy:20": [
        "heavy:20 drops single tokens and perchannel codes them late or in groups; "
        "write int8 or int4 instead of perchannel"
    ],
    "perchannel:12+page:8": [
        "page:8 cannot hold whole groups of 12 tokens; write page:12 or leave it out"
    ],
    "perchannel:4/perchannel:6+page:32": [
        "page:32 cannot hold whole groups of 12 tokens; write page:36 or leave it out"
    ],
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals_name_the_pair_and_the_remedy(text: str) -> None:
    assert list(reasons(text)) == REFUSED[text]


def test_refusals_that_depend_on_the_model() -> None:
    odd = model(replace(FULL, k_dim=63, v_dim=63, rope=None))
    assert reasons("int4:group=21", odd) == (
        "int4:group=21: 4-bit codes need an even head dim, not 63; write int8",
    )
    assert reasons("int4", model(replace(FULL, k_dim=80, v_dim=80))) == (
        "int4: groups of 32 do not divide a head dim of 80; write group=N with N a divisor of 80",
    )
    assert reasons("fp16", model(replace(SLIDING, kind="chunked"))) == (
        "chunked attention layers cannot be run yet; use a model without them",
    )
    assert reasons("none", model(STATE, FULL)) == (
        "'none' cannot recompute layers that keep a state; write fp16 instead",
    )
    assert reasons("int8/int4", model(LATENT)) == (
        "a latent layer stores one row for K and V, so 'int8/int4' cannot code them apart; "
        "write int8",
    )
    shared = LayerSpec("shared", 9, 3, 64, 64, source=0)
    assert reasons("heavy:20", model(FULL, shared)) == (
        "heavy:20 cannot choose tokens for layer 0, whose cache other layers share; "
        "scope it to other layers with @",
    )
    assert resolve("heavy:20@2", model(FULL, shared, FULL)).groups


@dataclass(frozen=True)
class Rotate(Stage):
    """A stage of a slot that nothing reads yet."""

    slot = Slot.TRANSFORM
    names: ClassVar = {"turnabout": {}}


@dataclass(frozen=True)
class Budget(Stage):
    """Another one."""

    slot = Slot.BUDGET
    names: ClassVar = {"allowance": {}}

    of: Amount = arg(positional=True)  # noqa: RUF009 (arg makes a dataclass field)


@dataclass(frozen=True)
class Vague(Retention):
    """Neither by position nor by choice."""

    names: ClassVar = {"vague": {}}


def test_all_reasons_come_at_once() -> None:
    text = "int8:group=48+int4+page:7+page:9+sinks:1+turnabout+allowance:5+vague"
    said = reasons(text, model(FULL, replace(FULL, kind="chunked", window=8)))
    assert set(said) == {
        "'turnabout' has no effect in this version; remove it",
        "'allowance:5' has no effect in this version; remove it",
        "chunked attention layers cannot be run yet; use a model without them",
        "'int4' and 'int8:group=48' all set the codec of a layer; keep one of them",
        "'page:7' and 'page:9' all set the page size of a layer; keep one of them",
        "int8:group=48: groups of 48 do not divide a head dim of 64; "
        "write group=N with N a divisor of 64",
        "'vague' must derive from Positional or Evicting",
        "'sinks:1' alone keeps nothing of the present; add window:N",
    }
    assert len(reasons("int8@99+int4@-99+fp16@0-30")) == 3
    assert len(reasons("int8:group=48@99+int4:group=5@0+int4")) == 2
    assert len(said) == len(set(said))


def test_layers_that_agree_give_one_reason() -> None:
    assert len(reasons("perchannel:8+window:5")) == 1
    assert len(reasons("int8@0+int4@0")) == 1
    mixed = reasons("int8:group=48@0+int4:group=48@1-29")
    assert [r.partition(":")[0] for r in mixed] == ["int8", "int4"]


def test_scoped_stages_replace_the_others() -> None:
    plan = resolve("fp16@0-1,-1+int8/int4+sinks:4+window:100+window:50@2+page:16@3")
    coded = [lp.codecs for lp in plan.layers if lp is not None]
    fp16, pair = (Float("float16"),) * 2, (Int(8), Int(4))
    assert coded == [fp16, fp16] + [pair] * 27 + [fp16]
    kept = [lp.kept for lp in plan.layers if lp is not None]
    assert kept == [Kept(100, 4, True)] * 2 + [Kept(50)] + [Kept(100, 4, True)] * 27
    assert plan.groups_of_layer[3][0].tokens == 16
    assert plan.groups_of_layer[4][0].tokens == 32


def test_a_replaced_stage_is_not_checked() -> None:
    """What cannot work on a layer may stand in a recipe that uses something else there."""
    assert resolve("int8/int4+int8@0", model(LATENT, FULL)).groups
    assert resolve("int4:group=48+fp16@0", model(FULL, replace(FULL, k_dim=96, v_dim=96))).groups


def test_two_scoped_stages_on_one_layer_are_too_many() -> None:
    assert reasons("int8@0-3+int4@3-5") == (
        "'int4' and 'int8' all set the codec of a layer; keep one of them",
    )
    assert resolve("int8@0-3+int4@4-5").groups


def test_defaults() -> None:
    plan = resolve("window:64")
    assert {lp.codecs for lp in plan.layers if lp} == {(Float("float16"),) * 2}
    assert plan.groups[0].tokens == 32
    assert resolve("perchannel:12").groups[0].tokens == 96, "pages hold whole groups"


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("fp16", Kept(512)),
        ("window:100", Kept(100)),
        ("window:512", Kept(512)),
        ("window:600", Kept(512)),
        ("sinks:4+window:600", Kept(512)),
        ("sinks:4+window:508", Kept(508, 4, True)),
        ("sinks:4+window:509", Kept(512)),
        ("sinks:600+window:8", Kept(512)),
        ("heavy:20", Kept(512)),
    ],
)
def test_sliding_layers_never_see_more_than_their_window(text: str, window: Kept) -> None:
    plan = resolve(text, GEMMA)
    sliding = [lp for lp in plan.layers if lp and lp.spec.kind == "sliding"]
    assert {lp.kept for lp in sliding} == {window}
    assert not any(lp.evicting for lp in sliding)
    rest = [lp for lp in plan.layers if lp and lp.spec.kind == "full"]
    if "+" in text or "window" in text:
        assert {lp.kept.window for lp in rest} == {int(text.rpartition(":")[2])}
    else:
        assert {lp.kept for lp in rest} == {Kept()}


ALL_SLIDING = model(*[SLIDING] * 3)
SHARING = model(FULL, LayerSpec("shared", 9, 3, 64, 64, source=0), STATE)
SLIDES = "the layers slide over 512 tokens by design; write a window below that, sinks included, "
SLIDES += "or leave it out"
CHOOSES = "the layers slide over 512 tokens by design and choose none; write window:N, or scope it "
CHOOSES += "to other layers"


def replaced(by: str) -> str:
    return f"{by} replaces it on every layer it was left; remove one of them"


WITHOUT_EFFECT: list[tuple[str, ModelSpec, dict[str, str]]] = [
    ("window:512", ALL_SLIDING, {"window:512": SLIDES}),
    ("window:600+int8", ALL_SLIDING, {"window:600": SLIDES}),
    ("window:600@0-4", GEMMA, {"window:600@0-4": SLIDES}),
    ("sinks:4+window:509", ALL_SLIDING, {"sinks:4": SLIDES, "window:509": SLIDES}),
    ("heavy:20", ALL_SLIDING, {"heavy:20": CHOOSES}),
    ("heavy:20@0-4", GEMMA, {"heavy:20@0-4": CHOOSES}),
    ("int8+int4@0-29", DENSE, {"int8": replaced("'int4@0-29'")}),
    ("int8+int4@0-14+fp16@15-29", DENSE, {"int8": ""}),
    ("page:8+page:16@0-29", DENSE, {"page:8": replaced("'page:16@0-29'")}),
    (
        "sinks:4+window:20+window:50@0-29",
        DENSE,
        {"sinks:4": replaced("'window:50@0-29'"), "window:20": replaced("'window:50@0-29'")},
    ),
    ("int8@1", SHARING, {"int8@1": "layer 1 reads the cache of layer 0; write @0"}),
    (
        "page:8@2",
        SHARING,
        {"page:8@2": "layer 2 keeps a state and no tokens; scope it to other layers"},
    ),
    ("int4+int8@0", SHARING, {"int4": ""}),
]


def test_a_model_of_states_alone_has_the_plain_recipe_only() -> None:
    """Mamba keeps no tokens: fp16, which is the default, says as much as nothing."""
    spec = replace(DENSE, layers=(LayerSpec("state", 0, 0, 0, 0, state_shape=(4, 4)),) * 64)
    assert resolve("fp16", spec).layers == (None,) * 64
    for text in ("int4", "window:64", "page:8@0-3", "none"):
        (said,) = reasons(text, spec)[:1]
        assert len(said) < 100
        assert "no layer of this model keeps tokens" in " ".join(reasons(text, spec))


def test_a_reason_names_few_of_many_layers_alike() -> None:
    state = LayerSpec("state", 0, 0, 0, 0, state_shape=(4, 4))
    spec = replace(DENSE, layers=(state,) * 99 + DENSE.layers[:1])
    (said,) = reasons("int8@0-98", spec)
    assert "layer 1 keeps a state" in said
    assert "97 more layers alike" in said


@pytest.mark.parametrize(("text", "spec", "want"), WITHOUT_EFFECT)
def test_a_stage_that_no_layer_uses_is_refused(
    text: str, spec: ModelSpec, want: dict[str, str]
) -> None:
    said = reasons(text, spec)
    assert len(said) == len(want)
    for stage, why in want.items():
        (mine,) = [r for r in said if r.startswith(f"'{stage}' has no effect: ")]
        assert why in mine
    rest = [p for p in text.split("+") if p not in want]
    assert resolve("+".join(rest or ["fp16"]), spec).layers, "without them it is a recipe"


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("window:511", ALL_SLIDING),
        ("sinks:4+window:508", ALL_SLIDING),
        ("sinks:1+window:511", ALL_SLIDING),
        ("window:600", GEMMA),
        ("heavy:20", GEMMA),
        ("int8+int4@0-28", DENSE),
        ("int8+int8@0", DENSE),
        ("fp16+page:32", DENSE),
        ("page:8+page:16@1-29", DENSE),
        ("sinks:4+window:20+window:50@1-29", DENSE),
        ("int8", SHARING),
        ("int8@0", SHARING),
        ("int8@0-1", SHARING),
    ],
)
def test_a_stage_that_some_layer_uses_is_not(text: str, spec: ModelSpec) -> None:
    assert resolve(text, spec).layers


def test_sinks_at_original_positions_do_not_reach_beyond_a_sliding_layer() -> None:
    text = "sinks:4,positions=original+window:20"
    assert reasons(text, GEMMA) == (
        "'sinks:4,positions=original' would be scored at distances beyond the 512 tokens that the "
        "layer was made for; write positions=cache, or scope all that keeps tokens to layers that "
        "do not slide with @",
    )
    assert resolve(text, DENSE).layers[0].kept == Kept(20, 4, False)  # type: ignore[union-attr]
    scoped = "sinks:4,positions=original@5,11,17+window:20@5,11,17"
    kept = [lp.kept for lp in resolve(scoped, GEMMA).layers if lp]
    assert kept == ([Kept(512)] * 5 + [Kept(20, 4, False)]) * 3


def test_groups_are_layers_that_keep_the_same() -> None:
    assert len(resolve("fp16").groups) == 1
    assert len(resolve("fp16@0-1,-1+int8").groups) == 1, "the table does not know of codecs"
    assert len(resolve("fp16", GEMMA).groups) == 2
    assert len(resolve("sinks:4+window:20", GEMMA).groups) == 1
    assert len(resolve("sinks:4+window:509", GEMMA).groups) == 2
    assert len(resolve("page:16@0+int8").groups) == 2
    assert len(resolve("perchannel@0-3+int8").groups) == 2
    assert len(resolve("perchannel@0-3+perchannel:16@4+int8/perchannel@5").groups) == 4
    assert len(resolve("heavy:20").groups) == 90, "one for each KV head"
    assert len(resolve("heavy:20@3").groups) == 1 + 3
    assert len(resolve("heavy:20", GEMMA).groups) == 1 + 3


def test_groups_cover_every_layer_once() -> None:
    for text in ("fp16", "heavy:20@3+int8", "perchannel@0-3+int4@5+page:64@7"):
        plan = resolve(text)
        covered = [(lp.index, g.head) for g in plan.groups for lp in g.layers]
        assert len(covered) == len(set(covered))
        assert {i for i, _ in covered} == set(range(30))
        assert [g.index for g in plan.groups] == list(range(len(plan.groups)))
        for layer, groups in plan.groups_of_layer.items():
            assert [g.head for g in groups] == ([0, 1, 2] if groups[0].evicting else [None])
            assert all(g.layers[0].index == layer for g in groups if g.head is not None)


def test_latent_layers_store_one_stream() -> None:
    plan = resolve("int8:group=64", model(LATENT))
    (lp,) = [lp for lp in plan.layers if lp]
    assert lp.v is None
    assert lp.codecs == (Int(8, group=64),)
    assert lp.codec("v") is lp.k
    assert [s.stream for s in plan.groups[0].main.slots] == ["k", "k"]
    assert resolve("int8:group=192", model(LATENT)).groups, "V has no groups of its own"


def test_halves_are_checked_for_their_own_stream() -> None:
    spec = model(replace(FULL, k_dim=96, v_dim=64, rope=Rope(96, 1e4)))
    assert resolve("int8:group=48/int8:group=64", spec).groups
    assert len(reasons("int8:group=64/int8:group=48", spec)) == 2
    assert reasons("int8:group=48", spec)[0].endswith("N a divisor of 64")


def test_layers_without_tokens_of_their_own_have_no_plan() -> None:
    shared = LayerSpec("shared", 9, 3, 64, 64, source=1)
    plan = resolve("int8", model(STATE, FULL, shared))
    assert [lp is None for lp in plan.layers] == [True, False, True]
    assert [lp.index for g in plan.groups for lp in g.layers] == [1]


def test_none_recomputes() -> None:
    plan = resolve("none")
    assert plan.recompute
    assert plan.groups == ()
    assert plan.page_bytes == ()
    assert not resolve("fp32").recompute


def test_keys_before_rope_need_no_rope() -> None:
    """Sinks, keys coded before rotation and a model without RoPE work together."""
    assert resolve("perchannel:raw+sinks:2+window:20", model(replace(FULL, rope=None))).groups


def teardown_module() -> None:
    for name in ("turnabout", "allowance", "vague"):
        del REGISTRY[name]
