"""Finding the description of a model in a file or folder, and reading it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvik.errors import KvikError, SpecError
from kvik.spec.config_json import spec_from_config
from kvik.spec.gguf_model import spec_from_gguf
from kvik.spec.gguf_plan import plan_from_gguf
from kvik.spec.hf_config import plan_from_file
from kvik.spec.model import ModelSpec
from kvik.spec.presets import preset_spec, unknown


def locate(path: str | Path) -> Path:
    """The .gguf file or config.json that describes the model at ``path``.

    In a folder, a config.json with safetensors beside it comes first, then a single .gguf,
    then a config.json alone (enough to plan with).
    """
    path = Path(path)
    if not path.is_dir():
        if not path.exists():
            raise SpecError(f"{path}: no such file or folder")
        return path
    config = path / "config.json"
    if config.is_file() and any(path.glob("*.safetensors")):
        return config
    models = sorted(file for file in path.iterdir() if file.suffix.lower() == ".gguf")
    if len(models) == 1:
        return models[0]
    if models:
        names = ", ".join(model.name for model in models[:5])
        raise SpecError(f"{path}: holds {len(models)} GGUF files; name one of them: {names}")
    if config.is_file():
        return config
    raise SpecError(f"{path}: holds neither a config.json nor a .gguf file")


def is_config(found: Path) -> bool:
    """Whether what :func:`locate` found is a config.json; everything else is read as a GGUF."""
    return found.suffix.lower() == ".json"


def load_spec(path: str | Path) -> ModelSpec:
    """ModelSpec of a .gguf file, a config.json, or a folder with one; SpecError on any fault."""
    try:
        found = locate(path)
        return spec_from_config(found) if is_config(found) else spec_from_gguf(found)
    except (ValueError, OSError) as error:
        # The dataclasses refuse what does not fit together (heads, rotary dimension).
        raise SpecError(f"{path}: {error}") from error


def find_spec(name: str | Path) -> ModelSpec:
    """ModelSpec to plan with, of any known family: a file, a folder or a built-in name.

    What the decoder can run is read as the decoder reads it. For everything else
    ``ModelSpec.unrunnable`` holds the decoder's reason.
    """
    path = Path(name)
    try:
        if not str(name) or (not path.exists() and path.suffix.lower() not in (".gguf", ".json")):
            return preset_spec(str(name))
    except (OSError, ValueError) as error:
        # A name longer than any path, or with a zero byte.
        raise SpecError(unknown(str(name))) from error
    return _planned(path)


def _planned(path: Path) -> ModelSpec:
    found = locate(path)
    try:
        spec, reason = load_spec(found), None
    except SpecError as error:
        spec, reason = None, error
    try:
        planned = plan_from_file(found) if is_config(found) else plan_from_gguf(found)
    except (KvikError, ValueError, OSError) as error:
        raise SpecError(
            str(error) if isinstance(error, KvikError) else f"{path}: {error}"
        ) from error
    if spec is None:
        return replace(planned, unrunnable=str(reason))
    return replace(
        spec,
        params=planned.params,
        source=planned.source,
        unwindowed=planned.unwindowed,
        stored=planned.stored,
    )
