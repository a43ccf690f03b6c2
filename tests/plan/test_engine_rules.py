"""How engines reserve: rules that receipts alone do not pin down."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cache.common import run
from tests.plan.ask import GIB, MIB, ask
from transformers import AutoConfig

from kvik.cache import KVCache, PagePool
from kvik.errors import KvikError
from kvik.plan.engines import ENGINES
from kvik.plan.engines.vllm import TYPES
from kvik.plan.hardware import find_device
from kvik.plan.ranks import Parallel, ranks
from kvik.recipe import Recipe
from kvik.spec import LayerSpec, ModelSpec
from kvik.spec.hf_config import plan_from_config
from kvik.spec.load import find_spec
from kvik.spec.presets import presets
from kvik.stages.ggml import TYPES as GGML
from kvik.testing.stacks import pairwise

MODELS = (
    "llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b", "deepseek-v3", "deepseek-v3.2", "llama-4-scout",
    "qwen3-next-80b-a3b", "jamba-v0.1", "falcon-h1-34b", "hunyuan-large", "mistral-7b-v0.1",
    "deepseek-v4-flash", "whisper-large-v3", "minicpm3-4b", "mimo-v2-flash", "gemma-3n-e4b",
)  # fmt: skip
# Less than 16 bits a value whatever the cache type: bytes of a token that such engines save.
IN_8_BITS = {
    ("deepseek-v3.2", "sglang"): 61 * (256 - 132),
    ("deepseek-v3.2", "vllm"): 61 * (256 - 132),
    ("deepseek-v4-flash", "sglang"): 43 * (1024 - 584) + 6880 - 3850,
}
SMALL = ModelSpec(
    "small",
    "llama",
    (
        LayerSpec("full", 4, 2, 64, 64),
        LayerSpec("sliding", 4, 2, 64, 64, window=48),
        LayerSpec("full", 6, 2, 64, 64),
    ),
    context=4096,
    vocab=96,
    hidden=64,
    ffn=128,
)


@pytest.mark.parametrize("recipe", pairwise())
def test_kvik_reserves_what_its_allocator_allocates(recipe: str) -> None:
    """The figure of ``kvik plan`` against the pages and tables of a cache that was filled."""
    try:
        plan = Recipe.parse(recipe).resolve(SMALL)
    except KvikError:
        return  # not a legal stack on these layers
    if plan.recompute:
        return  # it has no pool
    cache = KVCache(plan, PagePool(plan.page_bytes, 64 << 20))
    sequence, length = cache.create(), 0
    for context in (1, 33, 130):
        run(cache, [sequence], [context - length])
        length = context
        found = ask(SMALL, context, recipe)
        held = cache.nbytes(sequence)
        assert found["engine"]["reserved_bytes_per_request"] == held
        used = cache.pool.stats().used
        assert used == held - sequence.state.table_bytes, "the pool says so too"


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(sorted(ENGINES)),
    st.integers(1, 300_000),
    st.integers(0, 5000),
)
def test_more_context_never_takes_less(model: str, engine: str, context: int, more: int) -> None:
    shorter, longer = (ask(model, n, engine=engine) for n in (context, context + more))
    for read in (
        lambda a: a["kv"]["bytes"],
        lambda a: a["engine"]["reserved_bytes_per_request"],
    ):
        assert read(shorter) <= read(longer)
    inside = shorter["kv"]["bytes_per_token"] * context
    assert shorter["kv"]["bytes"] - shorter["kv"]["state_bytes_per_sequence"] <= inside


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("engine", ["kvik", "vllm", "sglang", "llamacpp", "trtllm"])
def test_reserved_is_at_least_the_data(model: str, engine: str) -> None:
    """(transformers keeps a window less one: it holds less between two steps.)

    kvik drops what no later query sees, one token of a window too.
    """
    for context in (100, 5000):
        found = ask(model, context, engine=engine)
        data = found["kv"]["bytes"]
        if (model, engine) in IN_8_BITS:
            data -= IN_8_BITS[model, engine] * context
            assert any("8 bits" in note or "8-bit" in note for note in found["notes"])
        if engine == "kvik":
            data -= found["kv"]["bytes_per_token"]
        assert found["engine"]["reserved_bytes_per_request"] >= data


@pytest.mark.parametrize("model", MODELS[2::3])
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_what_is_said_to_fit_fits_and_one_more_does_not(model: str, engine: str) -> None:
    found = ask(model, 2000, engine=engine, available=3 * GIB, batch=2)
    longest, largest = found["max_context"], found["max_batch"]
    assert found["fits"] == (largest >= 2)
    if longest:
        assert ask(model, longest, engine=engine, available=3 * GIB, batch=2)["fits"]
        assert not ask(model, longest + 1, engine=engine, available=3 * GIB, batch=2)["fits"]
    assert ask(model, 2000, engine=engine, available=3 * GIB, batch=largest)["fits"]
    assert not ask(model, 2000, engine=engine, available=3 * GIB, batch=largest + 1)["fits"]
    # By the reservation of one request, which does not come from that search.
    each = found["engine"]["reserved_bytes_per_request"]
    assert largest * each <= 3 * GIB
    if engine == "sglang":  # every pool of it has a fixed number of slots
        slots = found["engine"]["pool_tokens"]
        assert 2000 * largest <= slots
        assert longest is None or 2 * longest <= slots
    elif engine != "vllm":  # (of whole blocks)
        assert (largest + 1) * each > 3 * GIB


def upward(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


STEP = 512  # tokens in flight
SGLANG_WINDOWS = re.compile("deepseek4|deepseek_v4|gemma4|gpt_oss|laguna|llama4|mimo|step3")


def held_by_hand(engine: str, spec: ModelSpec, n: int, w: int | None) -> int:
    """Tokens that a layer with a window of ``w`` keeps of ``n``, as the engine's rule says it."""
    if not w or engine in spec.unwindowed:
        return n
    if engine == "sglang" and not SGLANG_WINDOWS.match(spec.family):
        return n  # no pool of its own
    block = 64 if any(layer.extra for layer in spec.layers) else 32
    most = {
        "kvik": w,
        "vllm": w - 1 + STEP,
        "sglang": w + STEP,
        "llamacpp": upward(w + STEP, 256),
        "trtllm": upward(w, block) + block,
        "transformers": w - 1,
    }
    return min(n, most[engine])


# Beside it: kvik's tables and partly filled pages, vLLM's alike pages and one block more.
SLACK = {"kvik": 0.002, "vllm": 0.17}
SLACK_V4 = {"kvik": 0.002, "vllm": 0.61}  # whose pages in vLLM are not modelled


def state_by_hand(engine: str, spec: ModelSpec) -> int:
    """Fixed bytes: llama.cpp and transformers keep float32, transformers a column more.

    SGLang holds three slots of recurrent layers, vLLM two pages where prefixes are cached.
    """
    total = 0
    cached = any(layer.caches_tokens for layer in spec.layers)
    copies = {"sglang": 3, "vllm": 2 if cached else 1}.get(engine, 1)
    for part in (part for layer in spec.layers for part in layer.states):
        values, size = prod(part.shape), part.item_bytes
        recurrent = part.name in ("recurrent", "conv")
        if engine == "llamacpp" and recurrent:
            size = 4
        if engine == "transformers" and part.name == "recurrent":
            size = 4
        if engine == "transformers" and part.name == "conv":
            values = values // part.shape[0] * (part.shape[0] + 1)
        total += values * size * (copies if recurrent else 1)
    return total


def row_by_hand(engine: str, spec: ModelSpec, layer: LayerSpec) -> int:
    """Bytes of a token in 16 bits; MiniCPM3's latent is expanded, in vLLM with V as wide as K.

    SGLang has DeepSeek-V4's rows in 8 bits: 448 codes, 8 B of scales, 64 values of position.
    """
    if engine == "sglang" and spec.family == "deepseek_v4":
        return 448 + 8 + 2 * 64
    expands = spec.family == "minicpm3" and engine in ("vllm", "llamacpp", "transformers")
    if not expands or layer.expanded is None:
        return 2 * layer.row_values
    k, v = layer.expanded
    return 2 * layer.heads * (2 * k if engine == "vllm" else k + v)


def sides_by_hand(engine: str, spec: ModelSpec, n: int) -> int:
    """Side streams: beside latent rows SGLang and vLLM keep an indexer's keys in 8 bits with a
    scale, SGLang in every layer; GLM's and DeepSeek-V4's are counted in 16 bits in vLLM.
    """
    latent = any(layer.kind == "latent" for layer in spec.layers)
    eight = latent and (engine == "sglang" or (engine, spec.family) == ("vllm", "deepseek_v32"))
    sizes = {128: 128 + 4, 512: 448 + 8 + 2 * 64} if eight else {}
    streams = [extra for layer in spec.layers for extra in layer.extra]
    total = sum(sizes.get(extra.dim, 2 * extra.dim) * extra.rows(n) for extra in streams)
    if engine == "sglang" and latent and streams and spec.family != "deepseek_v4":
        total += sum(not layer.extra for layer in spec.layers) * sizes[128] * n
    return total


@pytest.mark.parametrize("model", presets())
def test_every_known_model_is_planned_by_every_engines_rule(model: str) -> None:
    """4,096 tokens are whole blocks everywhere, so what is reserved follows by hand."""
    spec, tokens = find_spec(model), 4096
    slack = SLACK_V4 if spec.family == "deepseek_v4" else SLACK
    for engine in ENGINES:
        want = state_by_hand(engine, spec) + sides_by_hand(engine, spec, tokens)
        for layer in spec.layers:
            held = held_by_hand(engine, spec, tokens, layer.window)
            want += row_by_hand(engine, spec, layer) * held
        asked: dict[str, Any] = {"engine": engine, "inflight": STEP}
        found = ask(spec, tokens, memory=80 * GIB, weights="fp8", **asked)
        reserved = found["engine"]["reserved_bytes_per_request"]
        if engine in slack:
            row = 2 * max(layer.row_values for layer in spec.layers) * len(spec.layers)
            assert want - row <= reserved <= want * (1 + slack[engine]), engine
        else:
            assert reserved == want, engine
        assert found["fits"] in (True, False)


@pytest.mark.parametrize(
    ("model", "context", "mib"),
    [
        # "Phi SWA is currently disabled"; the others' architectures read no window.
        ("phi-3-mini-4k", 4096, 1536),
        ("mistral-7b-v0.1", 32_768, 4096),
        ("starcoder2-15b", 16_384, 1280),
    ],
)
def test_llama_cpp_applies_no_window_to_some_models(model: str, context: int, mib: int) -> None:
    found = ask(model, context, engine="llamacpp")
    assert found["engine"]["reserved_bytes_per_request"] == mib * MIB
    assert found["kv"]["bytes"] < mib * MIB, "the model itself has one"
    assert any("applies no window" in note for note in found["notes"])
    other = ask(model, context, engine="transformers")["engine"]["reserved_bytes_per_request"]
    assert other < mib * MIB
    assert not any(
        "applies no window" in n for n in ask("gemma-3-1b", 9, engine="llamacpp")["notes"]
    )


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("kind", ["mamba", "mamba2", "falcon_mamba"])
def test_models_of_states_alone_are_planned(kind: str, engine: str) -> None:
    """No length is too long for their cache; how many sequences fit is known."""
    spec = plan_from_config(AutoConfig.for_model(kind).to_dict(), kind, kind)
    short, long = (ask(spec, n, engine=engine, available=GIB) for n in (1, 1 << 20))
    state = short["kv"]["state_bytes_per_sequence"]
    assert short["kv"] == long["kv"]
    assert short["kv"]["bytes"] == state > 1e6
    assert short["kv"]["bytes_per_token"] == short["kv"]["growth_bytes_per_token"] == 0
    held = [f["engine"]["reserved_bytes_per_request"] for f in (short, long)]
    assert held[0] == held[1] >= state * 0.9
    room = GIB
    if engine == "sglang":  # 0.9 of 1.9 parts in slots, of which one is never a request's
        room = int(GIB * 9 / 19) - held[0] // 3
    assert short["max_batch"] == room // held[0]
    assert short["fits"] == (short["max_batch"] > 0)
    assert short["max_context"] == long["max_context"] == (None if short["fits"] else 0)
    if engine in ("vllm", "sglang"):  # no prefixes are cached there, three slots here
        assert held[0] == state * {"vllm": 1, "sglang": 3}[engine]
        assert any("a request" in n for n in short["notes"]) == (engine == "sglang")


def test_transformers_keeps_a_window_less_one() -> None:
    found = ask("mistral-7b-v0.1", 10_000, engine="transformers")
    assert found["engine"]["reserved_bytes_per_request"] == 4095 * 131_072


def test_transformers_convolutions_have_one_column_more() -> None:
    found = ask("qwen3-next-80b-a3b", 1, engine="transformers")
    state = found["engine"]["reserved_bytes_per_request"] - 24_576
    assert state == 36 * (32 * 128 * 128 * 4 + 4 * 8192 * 2)


@pytest.mark.parametrize(
    ("model", "tokens", "nbytes"),
    [
        # 2,146,304 B of state over 2,048 B a token, in sixteens, in groups of 12 layers.
        ("qwen3-next-80b-a3b", 1056, 12 * 1056 * 2048),
        ("qwen3.5-27b", 784, 16 * 784 * 4096),  # as its log says: 784 tokens
    ],
)
def test_vllm_makes_attention_blocks_as_large_as_a_state(
    model: str, tokens: int, nbytes: int
) -> None:
    """One attention group and three of states, which hold two pages each."""
    for context, blocks in ((1, 1), (tokens, 1), (tokens + 1, 2)):
        found = ask(model, context, engine="vllm")["engine"]
        assert found["reserved_bytes_per_request"] == (blocks + 6) * nbytes


@pytest.mark.parametrize(
    ("device", "inflight"),
    [("a100-80gb", 2048), ("a100-80gb-pcie", 2048), ("h100", 8192), ("l40s", 2048)],
)
def test_vllm_takes_smaller_steps_on_an_a100(device: str, inflight: int) -> None:
    name, memory = find_device(device).name, find_device(device).memory_bytes
    found = ask("gpt-oss-20b", 32_768, engine="vllm", device=name, memory=memory)
    assert any(f"up to {inflight:,} tokens" in note for note in found["notes"])
    given = ask("gpt-oss-20b", 32_768, engine="vllm", inflight=inflight)
    reserved = [f["engine"]["reserved_bytes_per_request"] for f in (found, given)]
    assert reserved[0] == reserved[1]


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [
        ("bfloat16", 512), ("fp8", 256), ("int8_per_token_head", 264),
        ("fp8_per_token_head", 264), ("int4_per_token_head", 136), ("nvfp4", 144),
        ("turboquant_k8v4", 196), ("turboquant_4bit_nc", 134), ("turboquant_k3v4_nc", 118),
        ("turboquant_3bit_nc", 102), ("fp8_inc", 256), ("nvfp4_4over6", 144),
        ("ultraquant_4bit", 136),
    ],
)  # fmt: skip
def test_vllm_types_at_128_channels(name: str, nbytes: int) -> None:
    assert TYPES[name].row(LayerSpec("full", 1, 1, 128, 128)) == nbytes


def test_ultraquant_at_256_channels() -> None:
    """As vLLM's own test of the slot says: 272 bytes."""
    assert TYPES["ultraquant_4bit"].row(LayerSpec("full", 1, 1, 256, 256)) == 272


FLAGS = (
    "auto float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc fp8_ds_mla nvfp4_ds_mla turboquant_k8v4 "
    "turboquant_4bit_nc turboquant_k3v4_nc turboquant_3bit_nc octave_k3v4 octave_k3v3 "
    "octave_k3v3_compact ultraquant_4bit int4_per_token_head int8_per_token_head "
    "fp8_per_token_head nvfp4 nvfp4_4over6"
)


@pytest.mark.parametrize("name", FLAGS.split())
def test_every_cache_type_of_vllm_is_known(name: str) -> None:
    """Counted, or refused by what is not known of it; never as a word that nobody has."""
    model = "deepseek-v3" if "_ds_mla" in name else "llama-3.1-8b"
    if name in TYPES:
        assert ask(model, 16, name, engine="vllm")["kv"]["bytes"] > 0
        return
    for engine in ("vllm", "kvik"):
        with pytest.raises(KvikError, match=r"vLLM has the cache type .* size of its rows is not"):
            ask(model, 16, name, engine=engine)


@pytest.mark.parametrize(
    ("kv", "engine", "words"),
    [
        ("fp9", "vllm", "nor a cache type of vLLM; .*: float32, auto, .*turboquant_3bit_nc"),
        ("fp9", "sglang", "nor a cache type of SGLang; .*: auto, .*nvfp4"),
        ("fp8_ds_mla", "vllm", "latent rows of MLA only; write fp16 or fp8"),
    ],
)
def test_an_unknown_type_brings_those_of_the_engine(kv: str, engine: str, words: str) -> None:
    with pytest.raises(KvikError, match=words):
        ask("llama-3.1-8b", 16, kv, engine=engine)


@pytest.mark.parametrize(
    ("model", "kv", "per_token"),
    [
        ("llama-3-8b", "nvfp4", 32 * 8 * 144),
        ("llama-3-8b", "fp4_mx_block16", 32 * 8 * 144),
        ("llama-3-8b", "mxfp8", 32 * 8 * (256 + 8)),
        ("deepseek-v3", "fp4_mx_block16", 61 * (576 // 2 + 576 // 16)),
        ("deepseek-v3", "int4", 61 * (576 // 2 + 576 // 16)),
    ],
)
def test_blocks_with_a_scale_in_sglang(model: str, kv: str, per_token: int) -> None:
    found = ask(model, 4096, kv, engine="sglang")
    assert found["engine"]["reserved_bytes_per_request"] == 4096 * per_token


@pytest.mark.parametrize(("engine", "kv"), [("vllm", "int8"), ("vllm", "int4"), ("trtllm", "int4")])
def test_the_nearest_type_of_latent_rows_is_the_one_that_is_counted(engine: str, kv: str) -> None:
    found = ask("deepseek-v3", 4096, kv, engine=engine)
    assert found["engine"]["reserved_bytes_per_request"] == 4096 * 61 * 576
    assert any(note.endswith("the nearest is fp8") for note in found["notes"])


def test_turboquant_leaves_two_layers_at_either_end() -> None:
    found = ask("llama-3.1-8b", 1600, "turboquant_3bit_nc", engine="vllm")
    want = 1600 * 8 * (28 * 102 + 4 * 512)
    assert found["engine"]["reserved_bytes_per_request"] == want


@pytest.mark.parametrize("name", GGML)
def test_llama_cpp_and_kvik_hold_the_same_data(name: str) -> None:
    found = ask("llama-3.1-8b", 4096, name, engine="llamacpp")
    assert found["engine"]["reserved_bytes_per_request"] == found["kv"]["bytes"]


@pytest.mark.parametrize(
    ("model", "tp", "share"),
    [
        ("llama-3.1-8b", 2, 2),  # 8 KV heads
        ("llama-3.1-8b", 8, 8),
        ("llama-3.1-8b", 16, 8),  # each head lies on two devices
        ("deepseek-v3", 8, 1),  # latent rows lie on all
        ("falcon-7b", 71, 1),
    ],
)
def test_tensor_parallel(model: str, tp: int, share: int) -> None:
    one, many = (ask(model, 4096, engine="vllm", tp=n) for n in (1, tp))
    reserved = [f["engine"]["reserved_bytes_per_request"] for f in (one, many)]
    assert reserved[0] == share * reserved[1]
    assert one["kv"] == many["kv"], "data are counted once"
    copies = any("times the KV of one copy" in note for note in many["notes"])
    assert copies == (share < tp)


@pytest.mark.parametrize(
    ("tp", "channels"),
    [(1, 4096 + 8 * 256), (4, 1024 + 2 * 256), (8, 512 + 256), (16, 256 + 256), (64, 64 + 256)],
)
def test_groups_of_mamba_2_lie_on_every_device_that_needs_them(tp: int, channels: int) -> None:
    """Nemotron-3-Nano: 64 heads of 64, 8 groups of a state of 128 (B and C)."""
    spec = find_spec("nemotron-3-nano-30b-a3b")
    layer = next(y for y in spec.layers if y.states)
    (rank,) = ranks(replace(spec, layers=(layer,)), None, Parallel(tp=tp))
    conv = next(p for p in rank.spec.layers[0].states if p.name == "conv")
    assert conv.shape == (3, channels)


def test_context_parallel_shards_tokens_and_not_windows() -> None:
    reserved = [
        ask("deepseek-v3", 8192, engine="vllm", tp=8, cp=n)["engine"]["reserved_bytes_per_request"]
        for n in (1, 8)
    ]
    assert reserved[0] == 8 * reserved[1]
    full, windows = 12 * 2 * 64 * 2 * 65_536, 12 * 2 * 64 * 2 * (128 + 1)  # a KV head a device
    for cp in (1, 8):
        engine = ask("gpt-oss-20b", 65_536, engine="sglang", tp=8, cp=cp, inflight=1)["engine"]
        assert engine["reserved_bytes_per_request"] == full // cp + windows
    with pytest.raises(KvikError, match="must divide --tp"):
        ask("llama-3.1-8b", 4096, engine="vllm", tp=2, cp=3)


def test_pipeline_stages_have_their_layers_and_scopes() -> None:
    """16 + 16 layers of which the first is in fp16: the first stage is the fuller one."""
    found = ask("llama-3.1-8b", 32, "fp16@0+int8", pp=2)
    want = 8 * 32 * 2 * (256 + 15 * 130) + 8
    assert found["engine"]["reserved_bytes_per_request"] == want
    with pytest.raises(KvikError, match="reads its cache"):
        ask("gemma-3n-e4b", 4096, pp=5)


@pytest.mark.parametrize(("tp", "why"), [(3, "query heads"), (5, "query heads")])
def test_heads_that_cannot_be_shared_out(tp: int, why: str) -> None:
    with pytest.raises(KvikError, match=why):
        ask("llama-3.1-8b", 4096, tp=tp)


def test_transformers_cannot_put_a_head_on_several_devices() -> None:
    with pytest.raises(KvikError, match="8 KV heads out over --tp 16"):
        ask("llama-3.1-8b", 4096, engine="transformers", tp=16)
    assert ask("deepseek-v3", 4096, engine="transformers", tp=16)


def test_transformers_plans_16_bits_where_it_cannot_quantize() -> None:
    plain, coded = (ask("gemma-3-27b", 4096, r, engine="transformers") for r in ("fp16", "int4"))
    reserved = [f["engine"]["reserved_bytes_per_request"] for f in (plain, coded)]
    assert reserved[0] == reserved[1]
    assert any("full attention only" in note for note in coded["notes"])
    with pytest.raises(KvikError, match="quanto-4: a quantized cache is for full attention only"):
        ask("gemma-3-27b", 4096, "quanto-4", engine="transformers")


@pytest.mark.parametrize(
    ("engine", "options", "words"),
    [
        ("llamacpp", {"tp": 4, "cp": 2}, ["no option for --tp 4", "no option for --cp 2"]),
        ("transformers", {"cp": 2}, ["no option for --cp 2"]),
        ("trtllm", {"inflight": 8}, ["--inflight (max_num_tokens) changes the activations only"]),
        ("kvik", {"inflight": 8}, ["--inflight changes the activations only"]),
        ("transformers", {"inflight": 8}, ["--inflight changes nothing"]),
        ("vllm", {"tp": 2, "pp": 2, "inflight": 8}, []),
        ("sglang", {"tp": 2, "cp": 2, "pp": 2, "inflight": 8}, []),
    ],
)
def test_options_that_an_engine_does_not_have_are_said(
    engine: str, options: dict[str, int], words: list[str]
) -> None:
    notes = ask("llama-3.1-8b", 4096, engine=engine, **options)["notes"]
    told = [n for n in notes if "no option for" in n or "--inflight" in n]
    assert len(told) == len(words)
    assert all(any(word in note for note in told) for word in words)


@pytest.mark.parametrize(
    ("model", "engine", "kv", "words"),
    [
        ("llama-3.1-8b", "vllm", "fp8_dsmla", "did you mean fp8_ds_mla.*nvfp4_4over6"),
        ("llama-3.1-8b", "sglang", "int9x", "neither a recipe nor a cache type of SGLang"),
        ("llama-3.1-8b", "sglang", "turboquant_k8v4", "a cache type of vllm: write --engine vllm"),
    ],
)
def test_types_that_cannot_be_planned(model: str, engine: str, kv: str, words: str) -> None:
    with pytest.raises(KvikError, match=words):
        ask(model, 4096, kv, engine=engine)


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_auto_follows_the_checkpoint(engine: str) -> None:
    notes = ask("llama-3.1-8b", 4096, engine=engine)["notes"]
    assert any("auto follows the checkpoint" in note for note in notes)
