"""Weights, activations, what is left, and the ladder of savings."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from tests.plan.ask import GIB, ask, request

from kvik.errors import KvikError
from kvik.plan.hardware import find_device
from kvik.plan.stack import rows
from kvik.plan.weights import check_format, weight_bytes
from kvik.spec.load import find_spec
from kvik.spec.params import Params
from kvik.spec.stored import Stored


def steps(model: str, context: int, kv: str = "fp16", **more: object) -> list[tuple[int, float]]:
    """Bytes of each rung, and the share saved since the first."""
    found = rows(request(model, context, kv, **more))
    return [(row["bytes"], row["saved_of_all"]) for row in found]


@pytest.mark.parametrize(
    ("model", "context", "gib"),
    [
        ("llama-3-8b", 4096, 0.5), ("llama-3-8b", 32_768, 4), ("llama-3-8b", 131_072, 16),
        ("llama-2-7b", 4096, 2), ("llama-2-7b", 131_072, 64),
        ("llama-2-70b", 4096, 1.25), ("llama-2-70b", 131_072, 40),
    ],
)  # fmt: skip
def test_facts_to_keep_straight(model: str, context: int, gib: float) -> None:
    assert ask(model, context)["kv"]["bytes"] == gib * GIB


@pytest.mark.parametrize(("context", "mha", "gqa"), [(4096, 10, 1.25), (131_072, 320, 40)])
def test_llama_2_70b_with_and_without_shared_heads(context: int, mha: float, gqa: float) -> None:
    """10 and 320 GiB, not 40 GB and 1.28 TB; eight KV heads of 64 save 87.5 %."""
    found = steps("llama-2-70b", context)
    assert found[0] == (mha * GIB, 0.0)
    assert found[1] == (gqa * GIB, 0.875)


def test_the_ladder_of_mla_and_of_shared_layers() -> None:
    first, latent, _ = steps("deepseek-v2", 4096)
    assert first[0] == 60 * 128 * (192 + 128) * 2 * 4096
    assert latent[0] == 69_120 * 4096
    first, grouped, shared, _ = steps("hunyuan-large", 4096)
    assert [n[0] // 4096 for n in (first, grouped, shared)] == [2_621_440, 262_144, 131_072]
    assert shared[1] == pytest.approx(0.95)


def test_the_ladder_ends_with_what_is_reserved() -> None:
    made = request("gemma-3-27b", 131_072, "int8/int4+sinks:4,positions=cache+window:508", batch=2)
    found = rows(made)
    assert found[-1]["bytes"] == 2 * made.engine_rules.request_bytes(131_072)
    assert found[-2]["bytes"] == ask(made.spec, 131_072, made.kv, batch=2)["kv"]["bytes"]
    names = [row["step"] for row in found]
    assert any("windows" in name for name in names)
    assert names.index("int8/int4") == names.index(made.kv.replace(",positions=cache", "")) - 1
    before = found[0]["bytes"]
    for row in found:
        assert row["saved_of_step"] == pytest.approx(1 - row["bytes"] / before)
        before = row["bytes"]


def test_kv_and_weights_add_up() -> None:
    """Quantizing one leaves the other as it is."""
    plain, kv, weights, both = (
        ask("llama-3-8b", 32_768, r, weights=w)
        for r, w in (("fp16", "fp16"), ("int4", "fp16"), ("fp16", "q4_0"), ("int4", "q4_0"))
    )
    assert kv["weights"] == plain["weights"]
    assert weights["kv"] == plain["kv"]
    assert both["kv"] == kv["kv"]
    assert both["weights"] == weights["weights"]


PARAMS = Params(total=1000, active=400, embedding=100, output=50)


@pytest.mark.parametrize(
    ("form", "nbytes"),
    [
        ("fp32", 4000), ("fp16", 2000), ("as-is", 2000), ("fp8", 850 + 300), ("int8", 850 + 300),
        ("int4", 442 + 300), ("mxfp4", 452 + 300), ("q8_0", 1063), ("q4_0", 563), ("q4_k", 563),
        ("q6_k", 821),
    ],
)  # fmt: skip
def test_weight_formats(form: str, nbytes: int) -> None:
    assert weight_bytes(PARAMS, form)[0] == nbytes


def test_weights_of_a_file_are_its_own() -> None:
    size, words = weight_bytes(replace(PARAMS, file_bytes=777), "as-is")
    assert (size, "as they are stored" in words) == (777, True)
    assert weight_bytes(None, "fp16")[0] is None
    with pytest.raises(KvikError, match="did you mean q4_k"):
        check_format("q4_k_m")
    assert check_format("Q4_0") == "q4_0"


def test_weights_that_are_not_known_leave_open_what_fits() -> None:
    """Nothing is guessed; memory for KV alone needs no weights."""
    spec = replace(find_spec("llama-3.1-8b"), params=None)
    for weights in ("as-is", "q4_0"):
        found = ask(spec, 4096, memory=16 * GIB, weights=weights)
        assert found["weights"]["bytes"] is None
        assert found["fits"] is found["max_context"] is found["max_batch"] is None
        assert found["engine"]["pool_tokens"] is found["engine"]["max_concurrency"] is None
        assert any("--available" in note for note in found["notes"])
        assert any("weights are not known" in note for note in found["notes"])
        assert not any("no length is too long" in note for note in found["notes"])
    found = ask(spec, 4096, available=GIB)
    assert (found["fits"], found["max_context"], found["max_batch"]) == (True, 8160, 1)


def test_a_format_that_is_not_known_makes_the_weights_unknown() -> None:
    spec = replace(find_spec("llama-3.1-8b"), stored=Stored(unknown="no such method"))
    size, words = weight_bytes(spec.params, "as-is", spec.stored)
    assert size is None
    assert "no such method" in words
    assert "--weights" in words
    assert ask(spec, 4096, memory=80 * GIB, weights="fp8")["fits"] is True


def test_gpt_oss_120b_fits_one_h100() -> None:
    """Its experts are stored in four bits: 65 GB in all, not 234."""
    found = ask("gpt-oss-120b", 8192, engine="vllm", memory=find_device("h100").memory_bytes)
    assert found["weights"]["bytes"] == pytest.approx(65.25e9, rel=0.002)
    assert found["fits"] is True
    assert any("experts in mxfp4; the rest in bf16" in note for note in found["notes"])


def test_the_budget_is_the_stated_rule() -> None:
    """0.92 of an H100 less weights, activations and 0.75 GiB, by hand."""
    memory = find_device("h100").memory_bytes
    found = ask("llama-3.1-8b", 8192, engine="vllm", memory=memory, weights="fp16")
    spec = find_spec("llama-3.1-8b")
    active = 2 * 8192 * (4 * spec.hidden + 2 * spec.ffn) + 4 * spec.vocab
    left = int(Fraction(92, 100) * memory) - found["weights"]["bytes"] - active - 3 * GIB // 4
    assert found["engine"]["pool_tokens"] == pytest.approx(left // (131_072 * 16) * 16, abs=16)
    assert any("0.92" in note for note in found["notes"])
    assert any("activations" in note for note in found["notes"])


def test_a_model_that_is_too_large_does_not_fit() -> None:
    found = ask("llama-3.1-405b", 4096, memory=24 * GIB)
    assert found["fits"] is False
    assert (found["max_context"], found["max_batch"]) == (0, 0)
    shared = ask("llama-3.1-405b", 4096, memory=80 * GIB, tp=8, pp=2, engine="vllm")
    assert shared["fits"] is True


def test_a_cache_without_bound_has_no_longest_context() -> None:
    found = ask("llama-3.1-8b", 4096, "sinks:4+window:252", available=GIB)
    assert found["max_context"] is None
    assert found["fits"] is True
    assert any("no length is too long" in note for note in found["notes"])


def test_nothing_asked_of_a_device_answers_nothing_about_it() -> None:
    found = ask("llama-3.1-8b", 4096)
    assert found["fits"] is found["max_context"] is found["max_batch"] is None
    assert found["device"] == {"name": None, "memory_bytes": None}


@pytest.mark.parametrize(
    ("kv", "words"), [("nvfp4", "--engine vllm"), ("int9", "int"), ("window:4@0", "")]
)
def test_cache_types_belong_to_their_engine(kv: str, words: str) -> None:
    if words:
        with pytest.raises(KvikError, match=words):
            ask("llama-3.1-8b", 4096, kv)
    else:
        assert ask("llama-3.1-8b", 4096, kv)["kv"]["layers"][0]["bytes"] == 4 * 4096
