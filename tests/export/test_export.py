"""What is exported is what the recipe says; what is left out is listed."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.ask import request

from kvik.errors import KvikError, RecipeError
from kvik.export import TARGETS, Exported, export
from kvik.recipe import Recipe
from kvik.testing.stacks import alone


def make(engine: str, kv: str, model: str = "llama-3.1-8b", **more: Any) -> Exported:
    return export(request(model, 4096, kv, engine=engine, **more), model)


def options(found: Exported) -> dict[str, str]:
    """Options with their values, joined where there are several."""
    words = shlex.split(found.command.replace("\\\n", " "))
    read: dict[str, str] = {}
    last = ""
    for word in words:
        if word.startswith("-"):
            last = word
            read[last] = ""
        elif last:
            read[last] = f"{read[last]} {word}".strip()
    return read


@pytest.mark.parametrize(
    ("engine", "kv", "more", "want"),
    [
        ("vllm", "fp16", {}, {"--kv-cache-dtype": "float16", "--max-model-len": "4096"}),
        ("vllm", "bf16", {"batch": 7}, {"--kv-cache-dtype": "bfloat16", "--max-num-seqs": "7"}),
        ("vllm", "fp8", {"tp": 4, "cp": 2}, {"--tensor-parallel-size": "4"}),
        ("vllm", "fp8", {"tp": 4, "cp": 2}, {"--decode-context-parallel-size": "2"}),
        ("vllm", "fp16@0,-1+int8", {}, {"--kv-cache-dtype-skip-layers": "0 31"}),
        ("vllm", "fp16+page:64", {}, {"--block-size": "64"}),
        (
            "vllm",
            "nvfp4",
            {"pp": 2},
            {"--kv-cache-dtype": "nvfp4", "--pipeline-parallel-size": "2"},
        ),
        ("sglang", "bf16+page:8", {}, {"--kv-cache-dtype": "bfloat16", "--page-size": "8"}),
        ("sglang", "fp8_e5m2", {"tp": 2}, {"--kv-cache-dtype": "fp8_e5m2", "--tp-size": "2"}),
        ("llamacpp", "fp16", {}, {"-ctk": "f16", "-ctv": "f16", "-c": "4096", "-np": "1"}),
        ("llamacpp", "q8_0/q4_0", {"batch": 3}, {"-ctk": "q8_0", "-ctv": "q4_0", "-c": "12288"}),
        ("llamacpp", "q8_0/q4_0", {}, {"-fa": "on"}),
        ("trtllm", "fp16", {"tp": 2, "pp": 2}, {"--tp_size": "2", "--pp_size": "2"}),
    ],
)
def test_options(engine: str, kv: str, more: dict[str, Any], want: dict[str, str]) -> None:
    found = make(engine, kv, **more)
    assert found.cannot == () or "int8" in kv
    assert want.items() <= options(found).items()


def test_the_type_that_is_named_is_the_type_that_is_set() -> None:
    """DeepSeek's latent rows have no integers in vLLM."""
    found = make("vllm", "int8", "deepseek-v3")
    assert options(found)["--kv-cache-dtype"] == "fp8"
    assert found.cannot == ("int8: no such cache type, the nearest is fp8",)


@pytest.mark.parametrize(
    ("engine", "kv", "want", "note"),
    [
        ("vllm", "fp16", {"--dtype": "float16", "--kv-cache-dtype": "float16"}, "16-bit type"),
        ("vllm", "bf16", {"--dtype": "bfloat16", "--kv-cache-dtype": "bfloat16"}, "16-bit type"),
        ("vllm", "auto", {"--kv-cache-dtype": "auto"}, ""),
        ("sglang", "fp16", {"--dtype": "float16", "--kv-cache-dtype": "auto"}, "16-bit type"),
        ("sglang", "bf16", {"--kv-cache-dtype": "bfloat16"}, ""),
        ("trtllm", "fp16", {}, "of the checkpoint, for fp16 and bf16 alike"),
        ("trtllm", "bf16", {}, "of the checkpoint, for fp16 and bf16 alike"),
        ("trtllm", "fp8", {}, ""),
    ],
)
def test_a_16_bit_type_is_set_or_said_to_follow_the_checkpoint(
    engine: str, kv: str, want: dict[str, str], note: str
) -> None:
    found = make(engine, kv)
    assert want.items() <= options(found).items()
    assert ("--dtype" in options(found)) == ("--dtype" in want)
    assert (note in " ".join(found.notes)) if note else not found.notes


def test_windows_of_tensorrt_llm_are_in_its_file() -> None:
    found = make("trtllm", "fp16+sinks:4+window:2044+page:64")
    lines = found.files["kv.yaml"].splitlines()
    assert "  max_attention_window: [2048]" in lines
    assert "  sink_token_length: 4" in lines
    assert "  tokens_per_block: 64" in lines
    assert options(found)["--config"] == "kv.yaml"
    assert found.cannot == ()


def test_the_code_for_transformers_compiles() -> None:
    found = make("transformers", "int4", model="llama-3.1-8b")
    compile(found.command, "export", "exec")
    assert '"backend": "quanto", "nbits": 4' in found.command
    assert "quanto-4" in found.cannot[0]
    odd = export(request("llama-3.1-8b", 4096, engine="transformers"), 'a"b\nc')
    compile(odd.command, "export", "exec")


def test_names_are_quoted_for_the_shell() -> None:
    made = request("llama-3.1-8b", 4096, engine="vllm")
    assert (
        shlex.split(export(made, "a b; rm -r x").command.replace("\\\n", " "))[2] == "a b; rm -r x"
    )


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(TARGETS)),
    st.lists(st.sampled_from(alone()), min_size=1, max_size=3),
    st.sampled_from(["", "@0", "@1-2"]),
)
def test_no_part_of_a_recipe_is_dropped_in_silence(engine: str, parts: list[str], at: str) -> None:
    """Each stage is in the command or its file, or among what cannot be said."""
    kv = "+".join([*parts[:1], *(part + at for part in parts[1:])])
    try:
        made = request("llama-3.1-8b", 4096, kv, engine=engine)
        found = export(made, "m")
    except RecipeError:
        return
    said = json.dumps([found.command, found.files])
    for stage, scope in Recipe.parse(kv).stages:
        text = str(stage)
        told = any(text in reason for reason in found.cannot)
        words = {
            "fp16": ("float16", "f16", "auto", "skip-layers"),
            "fp32": ("float32", "f32"),
            "bf16": ("bfloat16", "bf16", "auto", "skip-layers"),
            "window": ("max_attention_window",),
            "sinks": ("sink_token_length",),
            "page": ("block-size", "page-size", "tokens_per_block"),
        }.get(text.partition(":")[0], (text.partition("/")[0],))
        assert told or any(word in said for word in words), (text, str(scope), found)


def test_unknown_engines_and_impossible_recipes_are_refused() -> None:
    with pytest.raises(KvikError, match="did you mean sglang"):
        make("sglan", "fp16")
    with pytest.raises(KvikError, match="kvik run llama"):
        make("kvik", "int8")
    with pytest.raises(RecipeError, match="sinks:4"):
        make("vllm", "sinks:4")
    with pytest.raises(RecipeError, match="--engine vllm"):
        make("llamacpp", "nvfp4")
