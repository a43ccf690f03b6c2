"""Writes docs/models.md: the built-in models, the families that run and those that can be planned.

python tools/models_page.py          write the page
python tools/models_page.py --check  exit 1 when it is stale
"""

from __future__ import annotations

from pathlib import Path

from pages import write_or_check

from kvik.plan.data import layer_data, resolve, total
from kvik.recipe import Recipe
from kvik.spec.config_json import ARCHITECTURES
from kvik.spec.families import FAMILIES
from kvik.spec.gguf_families import ARCHS
from kvik.spec.gguf_model import BUILDERS
from kvik.spec.presets import preset_spec, presets

PAGE = Path(__file__).resolve().parents[1] / "docs" / "models.md"
HEAD = """# Models

`kvik plan` takes a path (a `.gguf` file, a `config.json`, or a folder with one) or one of the names
below. Case, hyphens, an owner before a slash and words such as `Instruct` do not matter:
`meta-llama/Llama-3.1-8B-Instruct` is `llama-3.1-8b`.

Bytes are data at two bytes a value, before any engine rounds them up, as `kvik plan` prints them:
for a token inside every window, for a further token past all of them, and fixed for each sequence
(recurrent layers, convolutions, an encoder's output). Parameters are those of the language model;
*active* are those that one token uses: some experts, one row of a table of embeddings. The last
column says where the sizes are from.

| name | layers | KV bytes/token | growth | fixed per sequence | parameters | active | source |
|---|---|---|---|---|---|---|---|
"""
FAMILY_HEAD = """
## Families that kvik runs

`kvik run`, `kvik compare` and the engine take a folder with safetensors whose `config.json` has one
of these `architectures`:

{runs}

and GGUF files of these architectures (Mistral and Mixtral are `llama` there):

{runs_gguf}

A field that changes what a model computes and that kvik does not compute (another activation, an
unknown RoPE scaling, experts that all tokens share) is refused by its name. Phi-3's LongRoPE has
factors for short and for long texts: `load_model(path, context=4096)` takes the short ones, without
it the long ones hold for texts of any length. `kvik eval`, `compare` and `inspect` choose by the
longest text that they feed, `kvik-lm-eval` by `max_length`; `run` takes the long ones.

## Families that can be planned

Any `config.json` with one of these `model_type`s can be planned (the language model of a larger
model is found in `text_config` and the like); a field that is missing is named, never guessed.

{configs}

And any GGUF file of these architectures:

{archs}
"""


def row(name: str) -> str:
    """The line of one model."""
    spec = preset_spec(name)
    layers = layer_data(resolve(Recipe.parse("fp16"), spec), spec, 1)
    inside = total(layer.per_token for layer in layers)
    growth = total(layer.growth for layer in layers)
    state = sum(layer.state_bytes for layer in spec.layers)
    params = spec.params
    size = f"{params.total / 1e9:,.2f} B" if params else "unknown"
    active = f"{params.active / 1e9:,.2f} B" if params else "unknown"
    fixed = f"{state / 2**20:,.2f} MiB" if state else "0"
    also = presets()[name].get("aliases", ())
    shown = name + (f" (also {', '.join(also)})" if also else "")
    figures = f"{inside:,} | {growth:,} | {fixed} | {size} | {active}"
    return f"| {shown} | {len(spec.layers)} | {figures} | {spec.source} |\n"


def page() -> str:
    """The whole page."""
    rows = "".join(row(name) for name in presets())
    configs = ", ".join(f"`{name}`" for name in sorted(FAMILIES, key=str.casefold))
    archs = ", ".join(f"`{name}`" for name in sorted(ARCHS))
    runs = ", ".join(f"`{name}`" for name in sorted(ARCHITECTURES))
    runs_gguf = ", ".join(f"`{name}`" for name in sorted(BUILDERS))
    return (
        HEAD
        + rows
        + FAMILY_HEAD.format(configs=configs, archs=archs, runs=runs, runs_gguf=runs_gguf)
    )


if __name__ == "__main__":
    raise SystemExit(write_or_check("models_page.py", {PAGE: page()}))
