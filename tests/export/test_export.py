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
        ("vllm", "fp16", {}, {"--dtype": "float16"}),
        ("vllm", "bf16", {}, {"--dtype": "bfloat16"}),
        ("sglang", "fp16", {}, {"--dtype": "float16", "--kv-cache-dtype": "auto"}),
        ("trtllm", "fp16", {"inflight": 512}, {"--max_num_tokens": "512"}),
        ("vllm", "fp16", {"device": "A100-80GB"}, {"--max-num-batched-tokens": "2048"}),
        ("vllm", "fp16", {"memory": 24 << 30}, {"--max-num-batched-tokens": "2048"}),
        ("llamacpp", "fp16", {"pp": 3}, {"-sm": "layer", "-ts": "1,1,1"}),
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


@pytest.mark.parametrize(
    ("engine", "kv", "want", "note"),
    [
        (
            "vllm",
            "fp16",
            {"--dtype": "float16", "--kv-cache-dtype": "float16"},
            "in the type of the cache",
        ),
        (
            "vllm",
            "bf16",
            {"--dtype": "bfloat16", "--kv-cache-dtype": "bfloat16"},
            "in the type of the cache",
        ),
        ("vllm", "auto", {"--kv-cache-dtype": "auto"}, ""),
        (
            "sglang",
            "fp16",
            {"--dtype": "float16", "--kv-cache-dtype": "auto"},
            "in the type of the cache",
        ),
        ("sglang", "bf16", {"--kv-cache-dtype": "bfloat16"}, ""),
        ("trtllm", "fp16", {}, "in the type of the cache (dtype)"),
        ("trtllm", "bf16", {}, "in the type of the cache (dtype)"),
        ("trtllm", "fp8", {}, ""),
    ],
)
def test_a_16_bit_type_is_set_and_said_to_be_the_models(
    engine: str, kv: str, want: dict[str, str], note: str
) -> None:
    found = make(engine, kv)
    assert want.items() <= options(found).items()
    assert ("--dtype" in options(found)) == ("--dtype" in want)
    said = [text for text in found.notes if "the type of the cache" in text]
    assert [note in text for text in said] == [True] * bool(note)


def test_windows_of_tensorrt_llm_are_in_its_file() -> None:
    found = make("trtllm", "fp16+sinks:4+window:2044+page:64")
    lines = found.files["kv.yaml"].splitlines()
    assert "  max_attention_window: [2048]" in lines
    assert "  sink_token_length: 4" in lines
    assert "  tokens_per_block: 64" in lines
    assert options(found)["--config"] == "kv.yaml"
    assert found.cannot == ()


@pytest.mark.parametrize(
    ("model", "kv", "windows"),
    [
        ("gpt-oss-20b", "fp16", "[128, 4096]"),
        ("gpt-oss-20b", "window:2048", "[128, 2048]"),
        ("gemma-3-27b", "fp16", "[1024, 1024, 1024, 1024, 1024, 4096]"),
        ("gemma-3-27b", "window:512", "[512]"),
        ("mistral-7b-v0.1", "fp16", "[4096]"),
        ("llama-3.1-8b", "fp16", None),
    ],
)
def test_windows_of_the_model_are_told_to_tensorrt_llm(
    model: str, kv: str, windows: str | None
) -> None:
    """As the plan counts them; the list repeats over the layers."""
    lines = make("trtllm", kv, model=model).files["kv.yaml"].splitlines()
    found = [line.split(": ")[1] for line in lines if "max_attention_window" in line]
    assert found == ([] if windows is None else [windows])


def test_tensorrt_llm_takes_dtype_and_context_parallelism_from_its_file() -> None:
    """Its cache type auto follows the model's, so that is said too."""
    text = make("trtllm", "bf16+page:64", cp=2).files["kv.yaml"]
    assert text.startswith("dtype: bfloat16\ncontext_parallel_size: 2\ncp_config:\n")
    assert text.count("tokens_per_block: 64") == 2
    assert make("trtllm", "fp16", cp=2).files["kv.yaml"].count("tokens_per_block: 32") == 2
    assert "dtype: float16\n" in make("trtllm", "fp16").files["kv.yaml"]
    assert not make("trtllm", "auto").files["kv.yaml"].startswith("dtype")


@pytest.mark.parametrize("model", ["gemma-3-27b", "gpt-oss-20b", "qwen3-next-80b-a3b", "glm-5.2"])
def test_transformers_has_no_quantized_cache_beside_other_layers(model: str) -> None:
    """transformers raises ValueError for a QuantizedCache of such a model."""
    found = make("transformers", "int4", model=model)
    assert 'cache_implementation="dynamic"' in found.command
    assert len(found.cannot) == 1
    assert "full attention only" in found.cannot[0]


def test_transformers_shares_out_by_its_own_configuration() -> None:
    found = make("transformers", "fp16", tp=4, pp=2, cp=2)
    compile(found.command, "export", "exec")
    assert "distributed_config=DistributedConfig(tp_size=4, pp_size=2)" in found.command
    assert found.cannot == ("--cp 2: no option for it",)
    assert any("--nproc-per-node 8" in note for note in found.notes)


def test_the_nearest_type_is_the_one_in_the_command() -> None:
    """No per-token scales for latent rows: 8 bits of another kind, and said so."""
    for engine, near in (("vllm", "fp8"), ("sglang", "fp8_e4m3")):
        found = make(engine, "int8", model="deepseek-v3")
        assert options(found)["--kv-cache-dtype"] == near
        assert found.cannot == (f"int8: no such cache type, the nearest is {near}",)


@pytest.mark.parametrize(
    ("engine", "model", "opened", "said"),
    [
        ("vllm", "a/b/config.json", "a/b", ""),
        ("sglang", "Org/Name", "Org/Name", ""),
        ("vllm", "llama-3.1-8b", "llama-3.1-8b", "stands for"),
        ("trtllm", "a/m.gguf", "m", "opens Hugging Face folders"),
        ("transformers", "a/m.gguf", "m", "opens Hugging Face folders"),
        ("llamacpp", "a/m.GGUF", "a/m.GGUF", ""),
        ("llamacpp", "/a/b/config.json", "b.gguf", "stands for"),
        ("llamacpp", "Org/Name", "Name.gguf", "stands for"),
    ],
)
def test_what_the_engine_is_told_to_open(engine: str, model: str, opened: str, said: str) -> None:
    found = export(request("llama-3.1-8b", 4096, engine=engine), model)
    assert opened in found.command.replace("'", " ").split()[0:9] or f"'{opened}'" in found.command
    told = [line for line in (*found.notes, *found.cannot) if "stands for" in line]
    assert bool(told) == bool(said)
    assert all(said in line for line in told)


@pytest.mark.parametrize(
    ("engine", "model", "why"),
    [
        ("sglang", "palm-540b", "never published"),
        ("llamacpp", "palm-540b", "never published"),
        ("llamacpp", "whisper-large-v3", "without an encoder"),
    ],
)
def test_models_that_the_engine_cannot_open(engine: str, model: str, why: str) -> None:
    found = export(request(model, 448, engine=engine), model)
    assert any(why in reason for reason in found.cannot)


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
