"""How the weights of a configuration are stored: floats, or codes that it describes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from kvik.errors import SpecError
from kvik.spec.fields import Fields
from kvik.spec.params import Params

Section = Literal["attention", "experts", "shared", "output"]
SECTIONS: tuple[Section, ...] = ("attention", "experts", "shared", "output")
FLOATS = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
MOST_MODULES = 1 << 20  # a list of modules beyond this describes no model
MOST_NAME = 1000
_LAYER = re.compile(r"layers\\?\.(\d{1,6})")
_MIXER = re.compile(r"(?:attn|attention|mixer)(.*)$")
# A mixer as a whole, or its projection outward, which stands for the others.
_WHOLE = re.compile(r"^\W*$|o_proj|out_proj|wo\b")


@dataclass(frozen=True)
class Coded:
    """One format: its name, bytes of a parameter, and the share of a section that has it.

    ``shared`` is what is neither attention nor experts that only some tokens use: dense networks,
    shared experts, routers.
    """

    section: Section
    name: str
    size: Fraction
    share: Fraction = Fraction(1)


@dataclass(frozen=True)
class Stored:
    """``plain`` is the float type of all that is not ``coded``; empty where nothing says it.

    ``nbytes`` is what all tensors take where the files themselves were seen. ``unknown`` is the
    reason why the bytes cannot be told.
    """

    plain: str = ""
    coded: tuple[Coded, ...] = ()
    nbytes: int | None = None
    unknown: str = ""

    def weigh(self, params: Params) -> Fraction | None:
        """Bytes of the weights; None where they cannot be told."""
        if self.unknown:
            return None
        size = Fraction(FLOATS[self.plain] if self.plain else 2)
        counts = _counts(params)
        total = size * params.total
        for part in self.coded:
            if part.section not in counts:
                return None
            total += (part.size - size) * part.share * counts[part.section]
        return total


def _counts(params: Params) -> dict[str, int]:
    """Parameters of each section, where they are known apart; tables are in none of them."""
    if params.routed is None or params.attention is None or params.output is None:
        return {}
    tables = (params.embedding or 0) + params.output + params.per_layer
    rest = params.total - tables - params.attention - params.routed
    return {
        "attention": params.attention,
        "experts": params.routed,
        "shared": rest,
        "output": params.output,
    }


def stored(levels: Iterable[Fields], layers: int) -> Stored:
    """What the levels of a configuration, the language model's first, say of its weights.

    A description that is not understood makes the bytes unknown; it does not stand in the way of
    the cache.
    """
    levels = list(levels)
    plain = next((t for level in levels if (t := _float(level))), "")
    where = next((y for y in levels for n in QUANTIZED if n in y), None)
    try:
        if plain and plain not in FLOATS:
            raise levels[0].fault(f"weights in {plain[:40]!r} are not known")
        if where is None:
            return Stored(plain)
        quantized = where.sub(next(name for name in QUANTIZED if name in where))
        return Stored(plain, tuple(_coded(quantized, levels[0], layers)))
    except SpecError as error:
        return Stored(plain, unknown=str(error))


QUANTIZED = ("quantization_config", "compression_config", "quantization")


def _float(level: Fields) -> str:
    for name in ("dtype", "torch_dtype"):
        value = level.get(name)
        if isinstance(value, str) and value != "auto":
            return value.removeprefix("torch.")
    return ""


def _coded(fields: Fields, model: Fields, layers: int) -> list[Coded]:
    method = fields.text("quant_method", "modelopt" if "quant_algo" in fields else "")
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise fields.wrong("quant_method", f"one of {known}")
    name, size = METHODS[method](fields)
    if name == MIXED:
        return _mixed(fields, layers)
    apart = _mixed(fields, layers) if "quantized_layers" in fields else []
    # With formats of some modules apart, ``ignore`` is what those leave to the common format.
    left = _left(_names(fields, *(LEFT[:1] if apart else LEFT)), layers)
    if method in HEADLESS and "lm_head" not in fields:
        left["output"] = Fraction(1)
    sections = ("experts",) if method == "mxfp4" else SECTIONS
    found = {s: Coded(s, name, size, 1 - left[s]) for s in sections if left[s] < 1}
    if model.get("expert_dtype") == "fp4":  # DeepSeek-V4
        found["experts"] = Coded("experts", "mxfp4", Fraction(17, 32))
    for part in apart:
        found.pop(part.section, None)
    return [*found.values(), *apart]


def _names(fields: Fields, *keys: str) -> list[str]:
    found: list[str] = []
    for key in keys:
        value = fields.get(key)
        if value is None:
            continue
        names = list(value) if isinstance(value, list | Mapping) else [value]
        if len(names) > MOST_MODULES or any(not isinstance(name, str) for name in names):
            raise fields.wrong(key, "a list of names of modules")
        found += names
    return found


LEFT = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")


def _section(name: str) -> Section | None:
    """What part of the model the name (or the pattern of names) of a module means.

    Modules of a section share their format, so one of them stands for all: patterns from a file
    are read for the words in them and never run.
    """
    text = name[:MOST_NAME].removeprefix("re:").replace("\\", "")
    if "lm_head" in text or text in ("head", "output"):
        return "output"
    if "shared_expert" in text:
        return None if "gate" in text and "proj" not in text else "shared"
    if "experts" in text:
        return "experts"
    mixer = _MIXER.search(text)
    if mixer:
        tail = mixer[1]
        inner = "norm" in tail or "indexer" in tail or "conv" in tail
        return "attention" if not inner and _WHOLE.search(tail) else None
    dense = any(word in text for word in ("mlp", "ffn", "feed_forward"))
    return "shared" if dense and any(word in text for word in ("down", "proj", "w2")) else None


def _left(names: list[str], layers: int) -> dict[Section, Fraction]:
    """The share of each section, by layers, that is left in floats."""
    return {s: _share(where, layers, layers) for s, where in _places(names).items()}


def _places(names: list[str]) -> dict[Section, set[int | None]]:
    """The layers of each section that names stand for; None stands for all layers."""
    where: dict[Section, set[int | None]] = {section: set() for section in SECTIONS}
    for name in names:
        section = _section(name)
        if section is not None:
            number = _LAYER.search(name[:MOST_NAME])
            where[section].add(int(number[1]) if number and section != "output" else None)
    return where


def _share(where: set[int | None], layers: int, count: int) -> Fraction:
    """How many of ``count`` layers are meant, of a model that ends before layer ``layers``."""
    if None in where:
        return Fraction(1)
    inside = len([n for n in where if n is not None and n < layers])
    return min(Fraction(1), Fraction(inside, max(1, count)))


MIXED = "mixed"


def _mixed(fields: Fields, layers: int) -> list[Coded]:
    """ModelOpt's mixtures: each module's name with its own algorithm."""
    listed = fields.get("quantized_layers")
    if not isinstance(listed, Mapping) or len(listed) > MOST_MODULES:
        raise fields.wrong("quantized_layers", "an object of modules")
    formats: dict[tuple[str, Fraction], list[str]] = {}
    for name, said in listed.items():
        if not isinstance(said, Mapping):
            raise fields.wrong("quantized_layers", "an object of objects")
        inner = fields.at(said, "quantized_layers[].")
        formats.setdefault(_modelopt(inner), []).append(name)
    places = {form: _places(modules) for form, modules in formats.items()}
    found = []
    for section in SECTIONS:
        # Not every layer has experts: those that are listed are all of them.
        every = {n for where in places.values() for n in where[section] if (n or 0) < layers}
        count = layers if section == "attention" else len(every)
        for (name, size), where in places.items():
            if share := _share(where[section], layers, count):
                found.append(Coded(section, name, size, share))
    return found


def _fp8(fields: Fields) -> tuple[str, Fraction]:
    """A byte, and a float32 scale for each block."""
    block = fields.get("weight_block_size")
    if block is None:
        return "fp8", Fraction(1)
    sides = fields.numbers("weight_block_size", 1, 1 << 20)
    if len(sides) != 2:
        raise fields.wrong("weight_block_size", "two whole numbers")
    return "fp8", 1 + Fraction(4, sides[0] * sides[1])


def _mxfp4(fields: Fields) -> tuple[str, Fraction]:
    return "mxfp4", Fraction(17, 32)


def _grouped(fields: Fields) -> tuple[str, Fraction]:
    """GPTQ and AWQ: a 16-bit scale and a zero of as many bits as the codes for each group."""
    bits = fields.integer("bits" if "bits" in fields else "w_bit", most=16)
    size = Fraction(bits, 8)
    group = fields.get("group_size" if "group_size" in fields else "q_group_size")
    if type(group) is int and group > 0:
        size += (2 + size) / group
    return f"int{bits}", size


def _bitsandbytes(fields: Fields) -> tuple[str, Fraction]:
    """Four bits with a float32 scale for each 64 (coded once more where it says so), or int8."""
    if fields.flag("load_in_8bit", False):
        return "int8", Fraction(1)
    if not fields.flag("load_in_4bit", False):
        raise fields.fault(f"neither {fields.label('load_in_4bit')} nor load_in_8bit is true")
    twice = fields.flag("bnb_4bit_use_double_quant", False)
    scales = Fraction(1, 64) + Fraction(4, 64 * 256) if twice else Fraction(4, 64)
    return fields.text("bnb_4bit_quant_type", "fp4"), Fraction(1, 2) + scales


def _compressed(fields: Fields) -> tuple[str, Fraction]:
    """compressed-tensors: all groups must have the same weights."""
    groups = fields.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise fields.wrong("config_groups", "an object of groups")
    found = {_weights(fields, name, group) for name, group in groups.items()}
    if len(found) > 1:
        raise fields.fault(f"{fields.label('config_groups')} has groups of different weights")
    return found.pop()


def _weights(fields: Fields, name: str, group: Any) -> tuple[str, Fraction]:
    inner = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(inner, Mapping):
        raise fields.fault(f"{fields.label('config_groups')} has a group without weights")
    weights = fields.at(inner, f"config_groups.{name[:40]}.weights.")
    bits, kind = weights.integer("num_bits", most=32), weights.text("type", "int")
    size, each = Fraction(bits, 8), weights.get("group_size")
    if type(each) is int and each > 0:
        # Codes of four bits in floats have scales of one byte, others of two, with a zero or not.
        scale = Fraction(1 if kind == "float" and bits == 4 else 2)
        scale += 0 if weights.flag("symmetric", True) else size
        size += scale / each
    if kind == "float":
        return ("fp8" if bits == 8 else "nvfp4" if each == 16 else "mxfp4"), size
    return f"int{bits}", size


def _modelopt(fields: Fields) -> tuple[str, Fraction]:
    algorithm = fields.text("quant_algo")
    if algorithm == "MIXED_PRECISION":
        return MIXED, Fraction()
    if algorithm not in ALGORITHMS:
        raise fields.wrong("quant_algo", f"one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[algorithm]


ALGORITHMS: dict[str, tuple[str, Fraction]] = {
    "FP8": ("fp8", Fraction(1)),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", Fraction(1)),
    "FP8_PB_WO": ("fp8", 1 + Fraction(4, 128 * 128)),
    "MXFP8": ("mxfp8", 1 + Fraction(1, 32)),
    "NVFP4": ("nvfp4", Fraction(9, 16)),
    "NVFP4_AWQ": ("nvfp4", Fraction(9, 16)),
    "W4A16_NVFP4": ("nvfp4", Fraction(9, 16)),
    "W4A8_NVFP4_FP8": ("nvfp4", Fraction(9, 16)),
    "W4A16_AWQ": ("int4", Fraction(1, 2) + Fraction(2, 128)),
    "W4A8_AWQ": ("int4", Fraction(1, 2) + Fraction(2, 128)),
    "W8A8_SQ_PER_CHANNEL": ("int8", Fraction(1)),
}
METHODS = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp4": _mxfp4,
    "gptq": _grouped,
    "awq": _grouped,
    "auto-round": _grouped,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
}
HEADLESS = ("fp8", "fbgemm_fp8", "gptq", "awq", "auto-round", "bitsandbytes")
