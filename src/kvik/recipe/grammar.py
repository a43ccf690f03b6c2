"""The recipe text: strict parsing with columns, canonical printing."""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import Any, NoReturn, get_type_hints

from kvik.errors import RecipeError
from kvik.recipe.amount import Amount
from kvik.recipe.codec import Codec, Pair
from kvik.recipe.scope import Scope
from kvik.recipe.stage import Stage, check_value, load_stages

MAX_LENGTH = 4096
_INT = re.compile(r"-?\d{1,18}\Z", re.ASCII)
_FLOAT = re.compile(r"-?\d{1,9}(\.\d{1,9})?\Z", re.ASCII)
_BOOL = {"yes": True, "no": False}

Placed = tuple[Stage, Scope]


def parse(text: str) -> list[Placed]:
    """Stages and their scopes in the order written; RecipeError names the column (from 1)."""
    if len(text) > MAX_LENGTH:
        raise RecipeError(f"a recipe has at most {MAX_LENGTH} characters, this one {len(text)}")
    if not text:
        raise RecipeError("column 1: the recipe is empty; write a codec such as int8")
    placed, start = [], 0
    for piece in text.split("+"):
        placed.append(_parse_placed(text, piece, start))
        start += len(piece) + 1
    return placed


def _fail(text: str, at: int, why: str) -> NoReturn:
    raise RecipeError(f"recipe {_short(text)!r}, column {at + 1}: {_short(why)}")


def _short(text: str, most: int = 300) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _parse_placed(text: str, piece: str, at: int) -> Placed:
    body, mark, scope_text = piece.partition("@")
    scope = Scope()
    if mark:
        try:
            scope = Scope.parse(scope_text)
        except ValueError as error:
            _fail(text, at + len(body) + 1, str(error))
    halves, offset, stages = body.split("/"), at, []
    for half in halves:
        stages.append(_parse_stage(text, half, offset))
        offset += len(half) + 1
    if len(stages) == 1:
        return stages[0], scope
    if len(stages) > 2:
        third = at + len("/".join(halves[:2])) + 1
        _fail(text, third, "a pair has one codec for K and one for V: write int8/int4")
    k, v = stages
    if not (isinstance(k, Codec) and isinstance(v, Codec)):
        _fail(text, at, "only codecs come in pairs of K and V, such as int8/int4")
    return Pair(k, v), scope


def _parse_stage(text: str, piece: str, at: int) -> Stage:
    name, colon, rest = piece.partition(":")
    known = load_stages()
    if not name:
        _fail(text, at, "a stage name is missing here")
    if name not in known:
        near = difflib.get_close_matches(name.strip().lower(), known, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
        _fail(text, at, f"unknown stage {name!r}; {hint}")
    cls = known[name]
    fixed = cls.names[name]
    if colon and not rest:
        _fail(text, at + len(name) + 1, f"{name!r} has a colon but no argument")
    arguments = _parse_arguments(text, cls, fixed, rest, at + len(name) + 1) if rest else {}
    missing = [
        f.name
        for f in _fields(cls, fixed)
        if f.name not in arguments and f.default is dataclasses.MISSING
    ]
    if missing:
        _fail(text, at + len(name), f"{name!r} needs {missing[0]}; write {name}:N")
    try:
        return cls(**fixed, **arguments)
    except RecipeError as error:
        _fail(text, at, str(error))


def _fields(cls: type[Stage], fixed: Any) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(cls) if f.name not in fixed]


def _parse_arguments(text: str, cls: type[Stage], fixed: Any, rest: str, at: int) -> dict[str, Any]:
    types = get_type_hints(cls)
    fields = {f.name: f for f in _fields(cls, fixed)}
    positional = [f.name for f in fields.values() if f.metadata.get("positional")]
    values: dict[str, Any] = {}
    for word in rest.split(","):
        key, equals, value = word.partition("=")
        value_at = at + len(key) + 1
        if not equals:
            value, value_at = key, at
            if types.get(key) is bool and key in fields:
                value = "yes"
            else:
                waiting = [p for p in positional if p not in values]
                if not waiting:
                    near = difflib.get_close_matches(key, fields, 1)
                    hint = f"; did you mean {near[0]}=...?" if near else ""
                    _fail(text, at, f"unexpected argument {key!r}{hint}")
                key = waiting[0]
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            names = near[0] if near else ", ".join(fields) or "none"
            _fail(text, at, f"unknown argument {key!r}; {'nearest' if near else 'known'}: {names}")
        if key in values:
            _fail(text, at, f"{key!r} is given twice")
        try:
            values[key] = _parse_value(types[key], value)
            check_value(fields[key], values[key])
        except ValueError as error:
            _fail(text, value_at, f"{key}: {error}")
        at += len(word) + 1
    return values


def _parse_value(kind: Any, value: str) -> Any:
    if kind is bool:
        if value not in _BOOL:
            raise ValueError(f"write yes or no, not {value!r}")
        return _BOOL[value]
    if kind is int:
        if not _INT.match(value):
            large = value.isascii() and value.isdigit()
            raise ValueError(f"{value!r} is {'too large' if large else 'no whole number'}")
        return int(value)
    if kind is float:
        if not _FLOAT.match(value):
            raise ValueError(f"{value!r} is no number")
        return float(value)
    return Amount.parse(value) if kind is Amount else value


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value + 0.0:.9f}".rstrip("0").rstrip(".")  # no minus sign on zero
    return str(value)


def format_stage(stage: Stage) -> str:
    """Canonical text: what the name fixes and what equals the default is left out."""
    if isinstance(stage, Pair):
        return f"{format_stage(stage.k)}/{format_stage(stage.v)}"
    words, in_order = [], True
    for f in _fields(type(stage), stage.fixed):
        value = getattr(stage, f.name)
        if f.default is not dataclasses.MISSING and value == f.default:
            in_order = False
            continue
        if f.metadata.get("positional") and in_order:
            words.append(_format_value(value))
        elif value is True:
            words.append(f.name)
        else:
            words.append(f"{f.name}={_format_value(value)}")
    return stage.name + (":" + ",".join(words) if words else "")


def format_placed(placed: Placed) -> str:
    """A stage with its scope."""
    stage, scope = placed
    return format_stage(stage) + (f"@{scope}" if scope.ranges else "")
