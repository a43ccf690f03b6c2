"""Figures that people published from the logs of real runs, and what the planner says of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.plan.ask import GIB, MIB, ask, request
from tests.spec.test_presets import CONTEXTS, TABLE, UNITS, WITHOUT_INDEXER

from kvik.plan.hardware import find_device
from kvik.spec.load import find_spec


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_the_table_of_known_models(row: tuple[str, int, int, str, str, str]) -> None:
    """Through the whole planner: data inside every window, growth, totals."""
    name, inside, past, *totals = row
    spec = find_spec(name)
    if name in WITHOUT_INDEXER:
        keys = sum(2 * extra.dim for layer in spec.layers for extra in layer.extra)
        assert keys == 78 * 256
        assert ask(spec, 4096)["kv"]["bytes_per_token"] == inside + keys
        spec = replace(spec, layers=tuple(replace(y, extra=()) for y in spec.layers))
    for context, said in zip(CONTEXTS, totals, strict=True):
        kv = ask(spec, context)["kv"]
        assert (kv["bytes_per_token"], kv["growth_bytes_per_token"]) == (inside, past)
        number, unit = said.split()
        bound = 0.51 * 10 ** -len(number.partition(".")[2])
        data = kv["bytes"] - kv["state_bytes_per_sequence"]
        assert data / UNITS[unit] == pytest.approx(float(number), abs=bound)


# Model, context, options; then tokens of the pool as the log says them, and how exactly: logs
# round the memory to 0.01 GiB.
POOLS: list[tuple[str, int, dict[str, Any], float, int, float]] = [
    ("gemma-4-31b", 262_144, {"engine": "vllm"}, 64.68, 626_949, 0),
    ("minimax-m3", 262_144, {"engine": "vllm", "tp": 8}, 107.99, 2_558_976, 0),
    ("llama-3.1-8b", 20_000, {"engine": "vllm"}, 2.89, 1478 * 16, 1e-3),
    ("llama-3.1-8b", 20_000, {"engine": "vllm"}, 3.81, 1952 * 16, 1.1e-3),
    ("qwen3.6-35b-a3b", 131_072, {"engine": "vllm", "kv": "fp8"}, 5.98, 567_978, 0),
    ("qwen3.6-35b-a3b", 131_072, {"engine": "vllm", "kv": "fp8"}, 6.01, 569_878, 0),
    ("mistral-small-4", 131_072, {"engine": "sglang", "tp": 4}, 52.22, 2_433_591, 1e-4),
    ("deepseek-v3.2", 4096, {"engine": "sglang", "kv": "fp8_e4m3"}, 43.67, 975_424, 1e-4),
    ("llama-2-7b", 4096, {"engine": "trtllm"}, 69_524_783_104 / GIB, 132_608, 0),
    ("qwen2.5-0.5b", 32_768, {"engine": "trtllm"}, 4.53, 395_776, 1e-3),
]


@pytest.mark.parametrize(("model", "context", "options", "gib", "tokens", "error"), POOLS)
def test_tokens_of_a_pool(
    model: str, context: int, options: dict[str, Any], gib: float, tokens: int, error: float
) -> None:
    found = ask(model, context, available=int(gib * GIB), **options)["engine"]["pool_tokens"]
    assert found == pytest.approx(tokens, rel=error, abs=0)


@pytest.mark.parametrize(
    ("model", "kv", "context", "gib", "requests"),
    [
        ("gemma-4-26b-a4b", "fp8", 131_072, 54.14, 25.41),
        ("llama-3.1-8b", "fp16", 20_000, 3.81, 1.56),
        ("qwen3.6-35b-a3b", "fp8", 131_072, 5.98, 4.33),
        ("qwen3.6-35b-a3b", "fp8", 131_072, 6.01, 4.35),
    ],
)
def test_requests_at_once(model: str, kv: str, context: int, gib: float, requests: float) -> None:
    found = ask(model, context, kv, engine="vllm", available=int(gib * GIB))
    assert found["engine"]["max_concurrency"] == pytest.approx(requests, abs=0.005)


def test_gpt_oss_reserves_windows_and_what_is_in_flight() -> None:
    """32 requests of 8,192 tokens: 6.09 GiB of data, 12.00 GiB of blocks."""
    found = ask("gpt-oss-20b", 8192, engine="vllm", batch=32)
    assert found["kv"]["bytes"] == 32 * 12 * 2048 * (8192 + 128)
    assert found["kv"]["bytes"] / GIB == pytest.approx(6.09, abs=0.005)
    each = found["engine"]["reserved_bytes_per_request"]
    assert 32 * each / GIB == pytest.approx(12.0, abs=0.02)
    for inflight in (512, 2048, 8192):
        found = ask("gpt-oss-20b", 8192, engine="vllm", inflight=inflight)
        blocks = -(-min(127 + inflight, 8192) // 16)
        want = 12 * 2048 * 8192 + 12 * 2048 * (16 * blocks + 16)
        assert found["engine"]["reserved_bytes_per_request"] == want


def test_gpt_oss_120b_blocks_of_the_old_log() -> None:
    """5.38 GiB: 78,384 tokens by the log of the time, which named the blocks of one of two groups.

    Today's log names what one request could have: a full layer beside a window that is bounded.
    """
    available = int(5.38 * GIB)
    found = ask("gpt-oss-120b", 131_072, engine="vllm", available=available)
    windows = -(-(127 + 8192) // 16) + 1
    blocks = available // (18 * 2048 * 16)
    assert blocks // 2 * 16 == pytest.approx(78_384, rel=1e-3)
    assert found["engine"]["pool_tokens"] == blocks * 131_072 // (131_072 // 16 + windows)
    reserved = found["engine"]["reserved_bytes_per_request"]
    assert reserved == (131_072 // 16 + windows) * 18 * 2048 * 16
    assert any("named the blocks of one group" in note for note in found["notes"])


@pytest.mark.parametrize("kv", ["fp16", "bf16"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_indexers_keep_their_keys_in_8_bits(engine: str, kv: str) -> None:
    """DeepSeek-V3.2: 132 B beside 1,152 B a token and layer; the data of a 16-bit cache is 256."""
    found = ask("deepseek-v3.2", 4096, kv, engine=engine)
    assert found["engine"]["reserved_bytes_per_request"] == 4096 * 61 * (1152 + 132)
    assert found["kv"]["bytes_per_token"] == 61 * (1152 + 256)
    plain = ask("deepseek-v3.2", 4096, kv, engine="llamacpp")
    assert plain["engine"]["reserved_bytes_per_request"] == 4096 * 61 * (1152 + 256)


def test_glm_in_sglang_has_indexer_keys_in_every_layer() -> None:
    found = ask("glm-5.2", 4096, "fp8_e4m3", engine="sglang")
    assert found["engine"]["reserved_bytes_per_request"] == 4096 * 78 * (656 + 132)


@pytest.mark.parametrize(
    ("model", "kv", "words"),
    [
        ("deepseek-v4-flash", "fp8", "do not rely on these figures"),
        ("glm-5.2", "fp8", "show 132 B"),
        ("qwen3-next-80b-a3b", "fp16", "2 pages of every group of states"),
    ],
)
def test_vllm_says_what_is_in_doubt(model: str, kv: str, words: str) -> None:
    found = ask(model, 30_000, kv, engine="vllm")
    assert any(words in note for note in found["notes"])
    assert not any(words in note for note in ask("llama-3.1-8b", 4096, engine="vllm")["notes"])


# llama.cpp's own log lines: full part and windowed part, in MiB.
@pytest.mark.parametrize(
    ("model", "context", "inflight", "mib"),
    [
        ("deepseek-v3", 32_768, None, 244 + 1952),
        ("gemma-3-4b", 131_072, None, 2560 + 174),
        ("gemma-3-12b", 65_536, None, 4096 + 480),
        ("gemma-3-27b", 65_536, 2048, 5120 + 1248),
        ("gemma-4-12b", 65_536, None, 1024 + 40 * 8192 * 1536 / MIB),
        ("gemma-4-e4b", 4096, 1024, 64 + 60),
        ("gemma-4-e4b", 4096, 4096, 64 + 160),
        ("lfm2-1.2b", 32_768, None, 384 + 10 * 2048 * 2 * 4 / MIB),
    ],
)
def test_buffers_of_llama_cpp(model: str, context: int, inflight: int | None, mib: float) -> None:
    found = ask(model, context, engine="llamacpp", inflight=inflight)
    assert found["engine"]["reserved_bytes_per_request"] == mib * MIB


def test_gemma_4_12b_in_eight_bits() -> None:
    """131,072 tokens in q8_0: about 1.31 GiB, where an estimate said 58 GB with the weights."""
    found = ask("gemma-4-12b", 131_072, "q8_0", engine="llamacpp")
    full, slides = 8 * 2 * 512 * 131_072, 40 * 2 * 8 * 256 * 1536
    assert found["engine"]["reserved_bytes_per_request"] == (full + slides) * 34 // 32
    assert found["engine"]["reserved_bytes_per_request"] / GIB == pytest.approx(1.3115, abs=5e-5)


def test_deepseek_r1_on_eight_h200() -> None:
    """Latent rows lie on every rank whole, and activations are not taken off a second time.

    The log says about 509,000 tokens with 0.82 of the memory; a tool that counted activations twice
    said 57,906, its authors' correction 497,973. kvik's share is 0.88 and has no option.
    """
    rank = 509_000 * 70_272
    found = ask("deepseek-r1", 8192, engine="sglang", tp=8, available=rank)
    assert found["engine"]["pool_tokens"] == 509_000
    memory = int(find_device("h200").memory_bytes * 0.82 / 0.88)
    found = ask("deepseek-r1", 8192, engine="sglang", tp=8, memory=memory)
    assert found["engine"]["pool_tokens"] == pytest.approx(509_000, rel=0.11)
    engine = request("deepseek-r1", 8192, engine="sglang", tp=8, memory=memory).engine_rules
    weights = found["weights"]["bytes"] // 8
    assert engine.budget(memory, weights, 8 * GIB) == engine.budget(memory, weights, 0)


@pytest.mark.parametrize(
    ("heads", "columns", "block", "padding"),
    [
        (4, 3, 784, 0.13),  # Qwen3.5-27B
        # Qwen3.8-Flash-Next: half the KV heads, and two columns for tokens that are guessed.
        (2, 5, 1600, 0.88),
    ],
)
def test_attention_blocks_as_large_as_a_state(
    heads: int, columns: int, block: int, padding: float
) -> None:
    """vLLM names the tokens of a block, and in percent what a state is padded by."""
    spec = find_spec("qwen3.5-27b")
    conv = next(p for y in spec.layers for p in y.states if p.name == "conv")
    wider = replace(conv, shape=(columns, conv.shape[1]))
    layers = tuple(
        replace(y, states=(y.states[0], wider)) if y.states else replace(y, kv_heads=heads)
        for y in spec.layers
    )
    state = sum(part.nbytes for part in layers[0].states)
    # The second block of attention is taken at one token past the first.
    ends = [
        ask(replace(spec, layers=layers), n, engine="vllm")["engine"]["reserved_bytes_per_request"]
        for n in (block, block + 1)
    ]
    one_less = ask(replace(spec, layers=layers), 1, engine="vllm")["engine"]
    assert one_less["reserved_bytes_per_request"] == ends[0] < ends[1]
    page = (ends[1] - ends[0]) // 16
    assert page == block * 2 * 2 * 256 * heads
    assert 100 * (page / state - 1) == pytest.approx(padding, abs=0.005)


def test_data_of_gemma_3_1b() -> None:
    """139 MiB, where a tool without windows said 832."""
    assert ask("gemma-3-1b", 32_768)["kv"]["bytes"] == 139 * MIB


def test_sglang_pools_of_windowed_layers() -> None:
    """MiMo-V2-Flash on four devices: 300,288 windowed slots take 8.38 GiB for K and 5.59 for V.

    They are 0.8 of the full slots, whose nine layers have half the KV heads.
    """
    windowed = (8.38 + 5.59) * GIB
    full = windowed / 0.8 * 9 / (39 * 2)
    found = ask("mimo-v2-flash", 4096, engine="sglang", tp=4, available=int(windowed + full))
    assert found["engine"]["pool_tokens"] == pytest.approx(300_288 / 0.8, rel=1e-3)


def test_sglang_pools_bound_requests_and_contexts() -> None:
    """gpt-oss-20b in 20 GiB: 24,576 B a full slot and 0.8 of that for windows."""
    slots = 20 * GIB * 10 // (24_576 * 18)
    found = ask("gpt-oss-20b", 131_072, engine="sglang", available=20 * GIB)
    assert found["engine"]["pool_tokens"] == found["max_context"] == slots == 485_451
    assert found["engine"]["max_concurrency"] == slots / 131_072
    assert found["max_batch"] == 3
    # Short requests fill the windowed pool first.
    found = ask("gpt-oss-20b", 1000, engine="sglang", available=20 * GIB)
    assert found["engine"]["max_concurrency"] == slots * 8 // 10 / 1000


def test_sglang_keeps_all_tokens_of_windows_that_it_has_no_pool_for() -> None:
    found = ask("gemma-3-27b", 4096, engine="sglang", available=20 * GIB)
    assert found["engine"]["pool_tokens"] == found["max_context"] == 20 * GIB // 507_904
    assert any("they keep every token" in note for note in found["notes"])
    other = ask("gemma-4-31b", 4096, engine="sglang", available=20 * GIB)
    assert not any("they keep every token" in note for note in other["notes"])


def test_sglang_sets_memory_aside_for_states() -> None:
    """Qwen3-Next: 0.9 of 1.9 parts for slots of 73.69 MiB, three a request."""
    state = 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    slots = int(40 * GIB * 9 / 19) // state
    found = ask("qwen3-next-80b-a3b", 4096, engine="sglang", available=40 * GIB)
    assert found["engine"]["pool_tokens"] == (40 * GIB - slots * state) // 24_576
    assert found["engine"]["max_concurrency"] == (slots - 1) / 3
    assert found["engine"]["reserved_bytes_per_request"] == 4096 * 24_576 + 3 * state


@pytest.mark.parametrize(
    ("model", "kv", "options", "per_token"),
    [
        ("deepseek-v3.2", "fp16", {}, 61 * (1152 + 256)),
        ("deepseek-v3.2", "fp8", {"engine": "vllm"}, 61 * (656 + 132)),
        ("glm-5.2", "fp8", {"engine": "vllm"}, 78 * 656 + 21 * 256),
        ("minimax-m3", "fp16", {}, 137_472),
        ("qwen3-coder-30b", "fp16", {}, 98_304),
        ("qwen2.5-7b", "fp16", {}, 57_344),
        ("mistral-small-4", "fp16", {}, 23_040),
        ("kimi-k3", "fp16", {}, 24 * 1152),
    ],
)
def test_bytes_of_a_token(model: str, kv: str, options: dict[str, Any], per_token: int) -> None:
    assert ask(model, 4096, kv, **options)["kv"]["bytes_per_token"] == per_token


def test_deepseek_v4_has_a_slope_and_fixed_parts() -> None:
    half = ask("deepseek-v4-flash", 4096)["kv"]
    assert half["growth_bytes_per_token"] == 6880
    assert 21 * 1024 // 4 + 20 * 1024 // 128 + 21 * 256 // 4 == 6880
    eight = ask("deepseek-v4-flash", 4096, "fp8_ds_mla", engine="vllm")["kv"]
    assert eight["growth_bytes_per_token"] == 21 * 584 / 4 + 20 * 584 / 128 + 21 * 132 / 4
    assert eight["bytes_per_token"] - eight["growth_bytes_per_token"] == 43 * 584


@pytest.mark.parametrize(
    ("model", "engine", "mib"),
    [
        ("qwen3.5-27b", "vllm", 146.81),
        ("qwen3.5-27b", "llamacpp", 149.63),
        ("qwen3-next-80b-a3b", "vllm", 73.69),
    ],
)
def test_fixed_state(model: str, engine: str, mib: float) -> None:
    if engine == "vllm":
        state = ask(model, 4096)["kv"]["state_bytes_per_sequence"]
    else:
        found = [ask(model, n, engine=engine) for n in (4096, 8192)]
        ends = [f["engine"]["reserved_bytes_per_request"] for f in found]
        state = 2 * ends[0] - ends[1]
    assert state / MIB == pytest.approx(mib, abs=0.01)


@pytest.mark.parametrize(("engine", "values"), [("llamacpp", 96 + 64), ("vllm", 96 + 96)])
def test_minicpm3_is_stored_with_expanded_heads(engine: str, values: int) -> None:
    found = ask("minicpm3-4b", 4096, engine=engine)
    assert found["kv"]["bytes_per_token"] == 35_712
    assert found["engine"]["reserved_bytes_per_request"] == 4096 * 62 * 40 * values * 2
    assert any("K and V of every head" in note for note in found["notes"])


def test_stages_of_a_pipeline() -> None:
    """Qwen3-Coder-30B at 262,144 tokens: 24 GiB, shared out by layers."""
    found = ask("qwen3-coder-30b", 262_144, engine="vllm", pp=2)
    assert found["kv"]["bytes"] == 24 * GIB
    assert found["engine"]["reserved_bytes_per_request"] == 12 * GIB
