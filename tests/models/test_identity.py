"""Identity: equal for equal K and V, other for another; whatever the name and the place."""

from __future__ import annotations

import dataclasses
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny import write_tiny_model

from kvik.models import Model, identity, load_model, random_model
from kvik.models.decoder import Decoder
from kvik.models.weights import expected_shapes
from kvik.spec import Experts, LayerSpec, ModelSpec, Rope
from kvik.testing import models

LAYER = LayerSpec("full", 6, 2, 32, 32, rope=Rope(32, 10_000.0))
SPEC = ModelSpec("one", "llama", (LAYER, LAYER), context=512, vocab=96, hidden=48, ffn=64)
OTHER_LAYERS = {
    "kind": "sliding",
    "heads": 4,
    "window": 9,
    "rope": Rope(32, 10_001.0),
    "scale": 0.5,
    "softcap": 30.0,
}
OTHER_SPECS = {
    "experts": Experts(4, 2, 32),
    "norm_eps": 1e-6,
    "activation": "gelu_tanh",
    "embed_scale": 1.5,
    "final_softcap": 30.0,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "one")


def test_random_models_count_by_their_tensors() -> None:
    one = random_model(SPEC, seed=1)
    assert len(one.identity) == 32
    assert one.identity == random_model(SPEC, seed=1).identity
    assert one.identity == random_model(replace(SPEC, name="two"), seed=1).identity
    assert one.identity != random_model(SPEC, seed=2).identity
    assert one.identity != random_model(SPEC, seed=1, dtype=torch.float64).identity
    everything = [models.grouped(), models.latent(), models.stateful(), models.plain()]
    assert len({m.identity for m in everything}) == 4


@pytest.mark.parametrize("change", [*OTHER_SPECS, *OTHER_LAYERS])
def test_every_part_of_the_description_counts(change: str) -> None:
    one = random_model(SPEC)
    if change in OTHER_SPECS:
        spec = replace(SPEC, **{change: OTHER_SPECS[change]})
    else:
        changed = {change: OTHER_LAYERS[change]} | ({"window": 9} if change == "kind" else {})
        spec = replace(SPEC, layers=(LAYER, replace(LAYER, **changed)))
    same_weights = Model("one", spec, one.decoder)
    assert same_weights.identity != one.identity


def test_any_single_weight_counts() -> None:
    """Also where only one tensor differs, in one number."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=generator)
        for name, shape in expected_shapes(SPEC).items()
    }
    seen = {Model("m", SPEC, Decoder.from_weights(SPEC, weights)).identity}
    for name, tensor in weights.items():
        other = tensor.clone()
        other.view(-1)[-1] += 1e-3
        decoder = Decoder.from_weights(SPEC, weights | {name: other})
        seen.add(Model("m", SPEC, decoder).identity)
    assert len(seen) == 1 + len(weights)


def test_files_count_by_content_wherever_they_are(folder: Path, tmp_path: Path) -> None:
    one = load_model(folder)
    shutil.copytree(folder, tmp_path / "two")
    os.symlink(folder, tmp_path / "three")
    assert load_model(tmp_path / "two").identity == one.identity
    assert load_model(tmp_path / "three").identity == one.identity
    assert load_model(folder / "config.json").identity == one.identity


def test_a_fine_tune_of_the_same_name_and_shape_differs(folder: Path, tmp_path: Path) -> None:
    one = load_model(folder)
    tuned = shutil.copytree(folder, tmp_path / "elsewhere" / "one")
    weights = load_file(tuned / "model.safetensors")
    weights["model.norm.weight"][0] += 0.5
    save_file(weights, tuned / "model.safetensors")
    two = load_model(tuned)
    assert (two.name, two.spec) == (one.name, one.spec)
    assert two.identity != one.identity


def test_another_description_of_the_same_file_differs(folder: Path) -> None:
    one = load_model(folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace("10000.0", "20000.0"))
    assert load_model(folder).identity != one.identity


def test_files_that_change_after_loading_do_not_count(folder: Path) -> None:
    """The model is what was loaded, not what lies there now."""
    weights = folder / "model.safetensors"
    model, again = load_model(folder), load_model(folder)
    tensors = load_file(weights)
    tensors["model.norm.weight"][0] += 0.5
    save_file(tensors, weights)
    later = load_model(folder)
    assert later.identity != model.identity
    weights.unlink()
    assert again.identity == model.identity, "both by their tensors now"
    by_tensors = Model(model.name, model.spec, model.decoder)
    assert by_tensors.identity == model.identity


def test_another_decoder_in_a_loaded_model_differs(folder: Path) -> None:
    one = load_model(folder, dense=True)
    embed = one.decoder.embed.clone()
    embed[0, 0] += 1
    two = dataclasses.replace(one, decoder=replace(one.decoder, embed=embed))
    assert two.identity != one.identity


def test_a_file_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_model(folder).identity
    monkeypatch.setattr(identity.hashlib, "file_digest", None)
    assert load_model(folder).identity == first
