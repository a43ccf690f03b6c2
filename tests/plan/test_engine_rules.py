"""How engines reserve: rules that receipts alone do not pin down."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.ask import GIB, ask

from kvik.errors import KvikError
from kvik.plan import kv_bytes
from kvik.plan.engines import ENGINES
from kvik.plan.engines.vllm import TYPES
from kvik.plan.hardware import find_device
from kvik.recipe import Recipe
from kvik.spec import LayerSpec, ModelSpec
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
    """The figure of ``kvik plan`` is the law that tests hold against the allocator."""
    try:
        plan = Recipe.parse(recipe).resolve(SMALL)
    except KvikError:
        return  # not a legal stack on these layers
    for context in (1, 33, 500):
        found = ask(SMALL, context, recipe)
        assert found["engine"]["reserved_bytes_per_request"] == kv_bytes(plan, context).total


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


@pytest.mark.parametrize(("number", "model"), list(enumerate(presets())))
def test_every_known_model_is_planned(number: int, model: str) -> None:
    """Each on one engine; windows in flight, padding and expanded heads may add to the data."""
    engine = sorted(ENGINES)[number % len(ENGINES)]
    found = ask(model, 4096, engine=engine, memory=80 * GIB)
    ratio = found["engine"]["reserved_bytes_per_request"] / found["kv"]["bytes"]
    assert 0.9 < ratio < 30
    assert found["fits"] in (True, False)


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
    ("model", "engine", "kv", "row"),
    [
        ("deepseek-v3", "sglang", "fp4_mx_block16", 61 * 324),
        ("deepseek-v3", "vllm", "nvfp4_ds_mla", 61 * 432),
        ("llama-3.1-8b", "sglang", "nvfp4", 32 * 8 * 144),
        ("llama-3.1-8b", "sglang", "mxfp8", 32 * 8 * 264),
    ],
)
def test_rows_of_further_types(model: str, engine: str, kv: str, row: int) -> None:
    assert ask(model, 4096, kv, engine=engine)["kv"]["bytes_per_token"] == row


@pytest.mark.parametrize(
    ("model", "engine", "kv", "words"),
    [
        ("llama-3.1-8b", "vllm", "fp8_ds_mla", "latent rows of MLA only"),
        ("deepseek-v4-flash", "vllm", "nvfp4_ds_mla", "rows of 512 [+] 64"),
        ("llama-3.1-8b", "vllm", "octave_k3v4", "the size of its rows is not known"),
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
