"""ModelSpec for planning from a Hugging Face configuration of any known family.

The decoder's own reader (:mod:`kvik.spec.config_json`) knows fewer families and more of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvik.errors import SpecError
from kvik.spec.count import count_params
from kvik.spec.families import FAMILIES, Family
from kvik.spec.fields import MAX_SIZE, Fields
from kvik.spec.jsonfile import model_name, read_json
from kvik.spec.kinds import Kind
from kvik.spec.model import LayerSpec, ModelSpec
from kvik.spec.names import FFN, HIDDEN, VOCAB, context, layer_count, nearest, pick, size
from kvik.spec.stored import stored
from kvik.spec.weight_files import weights_beside, with_quantization

# Where a model of several parts keeps its language model, in the order in which they are tried.
NESTED = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "decoder",
    "transf_decoder",
)


MAX_NESTED = 4


def plan_from_file(path: Path) -> ModelSpec:
    """:func:`plan_from_config` of a config.json."""
    values = with_quantization(path, read_json(path))
    spec = plan_from_config(values, str(path), model_name(path.absolute().parent))
    source = f"{path.parent.name}/{path.name}" if path.parent.name else path.name
    weights = replace(spec.stored, nbytes=weights_beside(path))
    return replace(spec, source=source, stored=weights)


def plan_from_config(values: Mapping[str, Any], source: str, name: str) -> ModelSpec:
    """What can be planned from a configuration; SpecError names the field that is in the way."""
    levels, kind = _language_model(Fields(values, source))
    fields = levels[-1]
    family = _family(fields, kind)
    fields = settled(fields, family)
    layers = cache_layers(fields, family)
    spec = ModelSpec(
        name=name,
        family=kind,
        layers=layers,
        context=context(fields),
        vocab=size(fields, VOCAB),
        hidden=size(fields, HIDDEN),
        ffn=_widest(fields),
        tied=fields.flag("tie_word_embeddings", family.tied),
        source=source,
        unwindowed=family.unwindowed,
        stored=stored(levels[::-1], len(layers)),
    )
    with suppress(SpecError):
        # A field that only the count needs does not stand in the way of the cache.
        return replace(spec, params=count_params(fields, spec))
    return spec


def settled(fields: Fields, family: Family) -> Fields:
    """The fields under their usual names, with what the family takes absent ones for."""
    fields = fields.renamed(family.names)
    for key, value in family.defaults.items():
        fields = fields.with_default(key, value)
    for key, value in family.absent.items():
        fields = fields.unless_null(key, value)
    return fields


def _widest(fields: Fields) -> int:
    """The dense feed-forward width, of the widest layer where each has its own; 0 if not said."""
    name = pick(fields, FFN)
    if isinstance(fields.get(name), list):
        return max(fields.numbers(name, 0, MAX_SIZE), default=0)
    return fields.integer(name) if type(fields.get(name)) is int else 0


def _language_model(fields: Fields) -> tuple[list[Fields], str]:
    """The fields of each level down to those of the text model alone, and its family's name."""
    kind, levels = fields.text("model_type", ""), [fields]
    for _ in range(MAX_NESTED):
        part = next((n for n in NESTED if isinstance(fields.get(n), Mapping) and n in fields), None)
        if part is None or not fields.get(part):
            break
        fields = fields.sub(part).or_else(fields, "tie_word_embeddings")
        kind = fields.text("model_type", "") or kind
        levels.append(fields)
    return levels, kind


def _family(fields: Fields, kind: str) -> Family:
    if not kind:
        raise fields.fault(f"the field {fields.label('model_type')} is missing")
    if kind not in FAMILIES:
        raise fields.fault(
            f"the field model_type is {kind[:80]!r}, whose cache is not known here; "
            f"{nearest(kind, FAMILIES)}"
        )
    return FAMILIES[kind]


def cache_layers(fields: Fields, family: Family) -> tuple[LayerSpec, ...]:
    """What each layer stores."""
    count = layer_count(fields)
    kinds = family.kinds(fields, count)
    layers = tuple(_layer(fields, family, kind, index) for index, kind in enumerate(kinds))
    return family.finish(fields, layers) if family.finish else layers


def _layer(fields: Fields, family: Family, kind: Kind, index: int) -> LayerSpec:
    if kind == "none":
        return LayerSpec("state", 0, 0, 0, 0)
    if kind == "state":
        if family.state is None:
            raise fields.fault(f"layer {index} is recurrent, which is not known of this family")
        return LayerSpec("state", 0, 0, 0, 0, states=family.state(fields))
    layer = family.layer(fields, kind, index)
    if family.parallel and family.state is not None:
        return replace(layer, states=family.state(fields))
    return layer
