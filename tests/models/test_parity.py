"""Our logits are transformers', on tiny random models of each family and on the real ones."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kvik.engine.session import Session
from kvik.errors import SpecError
from kvik.models.decoder import Decoder
from kvik.models.model import Model, load_model
from kvik.models.weights import load_weights
from kvik.spec import load_spec
from kvik.testing.choices import clear_choices

from .dense_cache import DenseCache

transformers = pytest.importorskip("transformers")

TINY = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMAS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "multi-head": {"num_key_value_heads": 4},
    "multi-query, tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "head dim": {"head_dim": 24},
    "rope llama3": {"rope_parameters": LLAMA3},
    "rope linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "bias": {"attention_bias": True},
}
GEMMAS: dict[str, dict[str, Any]] = {
    "multi-query": {"num_key_value_heads": 1},
    "softcap, scalar": {"final_logit_softcapping": 3.0, "query_pre_attn_scalar": 40},
    "long context": {
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        }
    },
}


def tiny(family: str, options: dict[str, Any]) -> Any:
    torch.manual_seed(7)
    if family == "llama":
        config = transformers.LlamaConfig(**TINY | {"tie_word_embeddings": False} | options)
        model = transformers.LlamaForCausalLM(config)
    else:
        gemma = {"head_dim": 16, "sliding_window": 5, "sliding_window_pattern": 3}
        config = transformers.Gemma3TextConfig(**TINY | gemma | options)
        model = transformers.Gemma3ForCausalLM(config)
    return filled(model, gemma=family != "llama")


def filled(model: Any, gemma: bool) -> Any:
    """The model with weights that make a mistake show; Gemma's norms are stored less one."""
    for name, parameter in model.named_parameters():
        spread = 0.1 if "norm" in name or "bias" in name else 0.15
        torch.nn.init.normal_(parameter, std=spread, mean=float("norm" in name and not gemma))
    return model.eval()


def ours(theirs: Any, folder: Path) -> Model:
    theirs.save_pretrained(folder)
    spec = load_spec(folder)
    return Model(spec.name, spec, Decoder.from_weights(spec, load_weights(folder, spec)), folder)


@torch.no_grad()
def reference(theirs: Any, tokens: Tensor) -> Tensor:
    return theirs(tokens[None]).logits[0]


def feed(model: Model, cache: DenseCache, parts: dict[int, Tensor], past: dict[int, int]) -> Tensor:
    """One step of a ragged batch: the next tokens of each sequence."""
    positions = torch.cat([past.get(s, 0) + torch.arange(len(t)) for s, t in parts.items()])
    cache.plan([s for s, t in parts.items() for _ in t], positions)
    logits = model.forward(torch.cat(list(parts.values())), positions, cache)
    cache.commit()
    past.update({s: past.get(s, 0) + len(t) for s, t in parts.items()})
    return logits


CASES = [("llama", key) for key in LLAMAS] + [("gemma3", key) for key in GEMMAS]


@pytest.mark.parametrize(("family", "case"), CASES)
def test_tiny_models_agree_with_transformers(family: str, case: str, tmp_path: Path) -> None:
    theirs = tiny(family, (LLAMAS if family == "llama" else GEMMAS)[case])
    assert_parity(theirs, ours(theirs, tmp_path))


def test_gemma3s_cap_of_scores_is_refused_as_transformers_ignores_it(tmp_path: Path) -> None:
    capped, plain = tiny("gemma3", {"attn_logit_softcapping": 0.1}), tiny("gemma3", {})
    text = torch.arange(20)
    torch.testing.assert_close(reference(capped, text), reference(plain, text))
    with pytest.raises(SpecError, match="attn_logit_softcapping must be absent"):
        ours(capped, tmp_path)


def assert_parity(theirs: Any, model: Model) -> None:
    """The logits of a ragged batch cut at random, and those through kvik's own cache."""
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(0, 131, (n,), generator=generator) for n in (40, 9, 23)]
    expected = [reference(theirs, text) for text in texts]
    assert expected[0].std() > 0.3

    # A ragged prefill, single steps of all three, then a chunk of one beside steps of another.
    cache, past, got = DenseCache(model.spec), {}, [[], [], []]
    cuts = [{0: 11, 1: 4, 2: 1}, *[{0: 1, 1: 1, 2: 1}] * 5, {2: 17, 0: 1}, {0: 23}]
    for cut in cuts:
        parts = {s: texts[s][past.get(s, 0) :][:n] for s, n in cut.items()}
        for s, rows in zip(
            parts, feed(model, cache, parts, past).split(list(cut.values())), strict=True
        ):
            got[s].append(rows)
    for rows, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(torch.cat(rows), wanted, atol=1e-4, rtol=0)

    # The same through kvik's own cache, which the laws tie to every other way of cutting it.
    for text, wanted in zip(texts, expected, strict=True):
        session = Session(model, "fp32", max_tokens=64)
        rows = [session.feed(text[:7].tolist(), logits="all")]
        rows.append(session.feed(text[7:].tolist(), logits="all", chunk=5))
        torch.testing.assert_close(torch.cat(rows), wanted, atol=1e-4, rtol=0)


REAL = {
    "smollm2-135m": lambda: transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        tie_word_embeddings=True,
    ),
    "gemma3-270m": lambda: transformers.Gemma3TextConfig(
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        max_position_embeddings=32768,
        query_pre_attn_scalar=256,
        sliding_window=512,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    ),
}
# Mean nats per token of the text below: the weights are shared, so a mistake in reading them
# (rows of Q and K out of order, norms off by one) shows here and not in the comparison.
NLL = {"smollm2-135m": 3.5, "gemma3-270m": 2.9}


def in_their_names(weights: dict[str, Tensor], gemma: bool) -> dict[str, Tensor]:
    """transformers' state dict from ours; its Gemma adds the one to a norm's weight itself."""
    parts = {"embed": "embed_tokens", "attn_norm": "input_layernorm"}
    if gemma:
        parts["post_attn_norm"] = "post_attention_layernorm"
        parts["ffn_norm"] = "pre_feedforward_layernorm"
        parts["post_ffn_norm"] = "post_feedforward_layernorm"
    else:
        parts["ffn_norm"] = "post_attention_layernorm"
    state = {}
    for name, tensor in weights.items():
        *prefix, part, kind = name.split(".")
        if part[:2] in ("q_", "k_", "v_", "o_"):
            prefix.append("self_attn")
        elif part in ("gate_proj", "up_proj", "down_proj"):
            prefix.append("mlp")
        theirs = ".".join(["model", *prefix, parts.get(part, part), kind])
        state[theirs] = tensor - 1 if gemma and part.endswith("norm") else tensor
    return state


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("name", REAL)
def test_real_models_agree_with_transformers(name: str) -> None:
    model = load_model(name, dense=True)
    text = pydoc_data.topics.topics["assignment"]
    # The prompt and what follows pass Gemma's window of 512, so that sliding layers forget.
    prompt = torch.tensor(model.tokenizer.encode(text)[:500])
    session, step, chosen, rows = Session(model, "fp32", max_tokens=600), prompt, [], []
    for _ in range(64):
        rows.append(session.feed(step.tolist(), logits="all"))
        step = rows[-1][-1:].argmax(-1)
        chosen.append(step)

    config = REAL[name]()
    state = in_their_names(load_weights(model.path, model.spec), gemma=name.startswith("gemma"))
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    theirs = kind.from_pretrained(None, config=config, state_dict=state, dtype=torch.float32)
    wanted = reference(theirs.eval(), torch.cat([prompt, *chosen[:-1]]))
    off = (torch.cat(rows) - wanted).abs().max()
    assert off < 1e-3
    # Each token is transformers' choice after those before it: its greedy text is the same, where
    # two tokens are not as near as rounding.
    after = wanted[len(prompt) - 1 :]
    clear = clear_choices(after, float(off))
    assert clear.float().mean() > 0.95
    assert torch.equal(torch.cat(chosen)[clear], after.argmax(-1)[clear])
    assert torch.nn.functional.cross_entropy(wanted[: len(prompt) - 1], prompt[1:]) < NLL[name]


@pytest.mark.soak
@pytest.mark.model
@pytest.mark.parametrize("name", REAL)
def test_weights_are_those_that_transformers_reads_from_the_file(name: str) -> None:
    # Minutes: its reader is slow on large vocabularies.
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    from kvik.models.sources import resolve

    path = resolve(name)
    with torch.device("meta"):
        shapes = transformers.AutoModelForCausalLM.from_config(REAL[name]())
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=shapes)["tensors"]
    ours = in_their_names(load_weights(path, load_spec(path)), gemma=name.startswith("gemma"))
    assert ours.keys() == theirs.keys()
    for key, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[key], atol=1e-6, rtol=0, msg=key)
