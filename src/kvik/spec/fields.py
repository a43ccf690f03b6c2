"""Reading the fields of a model description with their types and ranges checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvik.errors import SpecError

# Sizes beyond these mean a broken or hostile description, not a larger model.
MAX_SIZE = 1 << 31
MAX_LAYERS = 1 << 12
MAX_HEAD_DIM = 1 << 14
MIN_NUMBER, MAX_NUMBER = 1e-18, 1e18


class Fields:
    """Typed access to ``values``, where a field that is null counts as absent.

    ``prefix`` stands before each name in ``values`` (GGUF's ``llama.``); ``path`` says where
    ``values`` was found. Errors name the source and the whole field.
    """

    def __init__(
        self, values: Mapping[str, Any], source: str, prefix: str = "", path: str = ""
    ) -> None:
        self._values, self._source, self._prefix, self._path = values, source, prefix, path

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> Any:
        """The field as it stands, or None."""
        return self._values.get(self._prefix + name)

    def label(self, name: str) -> str:
        """The field's full name."""
        return f"{self._path}{self._prefix}{name}"

    def fault(self, text: str) -> SpecError:
        """The error ``text`` with the source's name."""
        return SpecError(f"{self._source}: {text}")

    def wrong(self, name: str, expected: str) -> SpecError:
        """The error of a field that holds something else than ``expected``."""
        shown = repr(self.get(name))
        shown = shown if len(shown) <= 60 else shown[:60] + "..."
        return self.fault(f"the field {self.label(name)} must be {expected}, not {shown}")

    def _value(self, name: str, default: Any) -> Any:
        value = self.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.fault(f"the field {self.label(name)} is missing")
        return value

    def integer(self, name: str, default: int | None = None, *, most: int = MAX_SIZE) -> int:
        """A whole number from 1 to ``most``."""
        value = self._value(name, default)
        if type(value) is not int or not 1 <= value <= most:
            raise self.wrong(name, f"a whole number from 1 to {most}")
        return value

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number from 0 on."""
        value = self._value(name, default)
        if type(value) is not int or not 0 <= value <= MAX_SIZE:
            raise self.wrong(name, f"a whole number from 0 to {MAX_SIZE}")
        return value

    def numbers(self, name: str, least: int, most: int) -> list[int]:
        """A list of whole numbers from ``least`` to ``most``."""
        values = self.get(name)
        if isinstance(values, str | Mapping) or not hasattr(values, "__len__"):
            raise self.wrong(name, "a list")
        found = list(values)
        if any(type(value) is not int or not least <= value <= most for value in found):
            raise self.wrong(name, f"a list of whole numbers from {least} to {most}")
        return found

    def positive(self, name: str) -> tuple[float, ...]:
        """A list of positive numbers."""
        values = self._value(name, None)
        if not isinstance(values, list) or any(
            type(value) not in (int, float) or not MIN_NUMBER <= value <= MAX_NUMBER
            for value in values
        ):
            raise self.wrong(name, f"a list of numbers from {MIN_NUMBER} to {MAX_NUMBER}")
        return tuple(map(float, values))

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number of a size that a model can have."""
        value = self._value(name, default)
        if type(value) not in (int, float) or not MIN_NUMBER <= value <= MAX_NUMBER:
            raise self.wrong(name, f"a number from {MIN_NUMBER} to {MAX_NUMBER}")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """A positive number, or None where the field is absent."""
        return self.number(name) if name in self else None

    def flag(self, name: str, default: bool) -> bool:
        """A truth value."""
        value = self._value(name, default)
        if type(value) is not bool:
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(name, default)
        if type(value) is not str:
            raise self.wrong(name, "a string")
        return value

    def sub(self, name: str) -> Fields:
        """The object in the field, as fields of its own; empty where the field is absent."""
        value = self._value(name, {})
        if not isinstance(value, Mapping):
            raise self.wrong(name, "an object")
        return Fields(value, self._source, path=f"{self.label(name)}.")

    def or_else(self, other: Fields, name: str) -> Fields:
        """These fields, with ``name`` taken from ``other`` where it is absent here."""
        return self.with_default(name, other.get(name)) if name in other else self

    def with_default(self, name: str, value: Any) -> Fields:
        """These fields with a value for one that is absent."""
        if name in self:
            return self
        values = {**self._values, self._prefix + name: value}
        return Fields(values, self._source, self._prefix, self._path)

    def unless_null(self, name: str, value: Any) -> Fields:
        """These fields with a value for one that is absent, but not for one that is null."""
        return self if self._prefix + name in self._values else self.with_default(name, value)

    def renamed(self, names: Mapping[str, str]) -> Fields:
        """These fields, where each key of ``names`` stands for the field that it maps to."""
        values = dict(self._values)
        for name, other in names.items():
            values[name] = self._value(other, None)
        return Fields(values, self._source, self._prefix, self._path)

    def at(self, values: Mapping[str, Any], path: str) -> Fields:
        """Fields of an object found inside these at ``path``."""
        return Fields(values, self._source, path=f"{self._path}{self._prefix}{path}")

    def sequence(self, name: str, length: int) -> list[Any]:
        """A list of ``length`` values."""
        value = self.get(name)
        if isinstance(value, str | Mapping) or not hasattr(value, "__len__"):
            raise self.wrong(name, "a list")
        if len(value) != length:
            raise self.fault(f"the field {self.label(name)} lists {len(value)}, not {length}")
        return list(value)

    def refuse(self, name: str, *allowed: Any) -> None:
        """Refuse any value of the field but absence and ``allowed``."""
        value = self.get(name)
        if value is not None and value not in allowed:
            raise self.wrong(name, " or ".join([*map(repr, allowed), "absent"]))
