"""Reading GGUF's values from a mapped file, never past its end."""

from __future__ import annotations

import mmap
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, overload

from kvik.errors import SpecError

# GGUF's numbers for value types, as struct and array codes.
SCALARS = {
    code: struct.Struct("<" + letter)
    for code, letter in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip
BOOL, STRING, ARRAY = 7, 8, 9

# Far above any vocabulary; they bound the time and memory of a hostile header.
MAX_STRINGS = 1 << 22
MAX_ARRAYS = 1 << 12
MAX_DEPTH = 4

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class Strings(Sequence[str]):
    """An array of strings, decoded as they are read: a vocabulary costs the planner nothing."""

    __slots__ = ("_blob", "_name", "_starts")

    def __init__(self, blob: bytes, starts: array[int], name: str) -> None:
        """``starts`` indexes each string in ``blob`` past its 8 length bytes; one more closes."""
        self._blob, self._starts, self._name = blob, starts, name

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._decode(i) for i in range(*index.indices(len(self)))]
        return self._decode(range(len(self))[index])

    def __iter__(self) -> Iterator[str]:
        return map(self._decode, range(len(self)))

    def _decode(self, index: int) -> str:
        try:
            return self._blob[self._starts[index] : self._starts[index + 1] - 8].decode()
        except UnicodeDecodeError as error:
            raise SpecError(f"string {index} of {self._name!r} is not UTF-8") from error


class Cursor:
    """A position in a GGUF header; every read checks the end of the file first."""

    def __init__(self, data: mmap.mmap | bytes, source: str) -> None:
        self._data, self._source, self._size = data, source, len(data)
        self._strings_left, self._arrays_left = MAX_STRINGS, MAX_ARRAYS
        self.position = 0

    def fault(self, text: str) -> SpecError:
        """The error ``text``, with the file's name."""
        return SpecError(f"{self._source}: {text}")

    def need(self, end: int, what: str) -> None:
        """Refuse unless the file reaches byte ``end``."""
        if end > self._size:
            raise self.fault(
                f"the file ends at byte {self._size}; {what} needs {end}: fetch it again"
            )

    def raw(self, count: int, what: str) -> bytes:
        """The next ``count`` bytes."""
        start = self.position
        self.need(start + count, what)
        self.position += count
        return self._data[start : start + count]

    def u32(self, what: str) -> int:
        """An unsigned 32-bit number."""
        return int(_U32.unpack(self.raw(4, what))[0])

    def u64(self, what: str) -> int:
        """An unsigned 64-bit number."""
        return int(_U64.unpack(self.raw(8, what))[0])

    def string(self, what: str, limit: int | None = None) -> str:
        """A length and as many bytes of UTF-8."""
        length = self.u64(what)
        self.need(self.position + length, what)
        if limit is not None and length > limit:
            raise self.fault(f"{what} is {length} bytes long; at most {limit} are read")
        try:
            return self.raw(length, what).decode()
        except UnicodeDecodeError as error:
            raise self.fault(f"{what} is not UTF-8") from error

    def value(self, kind: int, name: str, depth: int = 0) -> Any:
        """A metadata value of GGUF type ``kind``; ``name`` is its key."""
        if kind == STRING:
            return self.string(f"the text of {name!r}")
        if kind == ARRAY:
            return self._array(name, depth)
        number = self._scalar(kind, name)
        value = number.unpack(self.raw(number.size, f"the value of {name!r}"))[0]
        if kind == BOOL and value > 1:
            raise self.fault(f"{name!r} is a truth value and cannot be {value}")
        return bool(value) if kind == BOOL else value

    def _scalar(self, kind: int, name: str) -> struct.Struct:
        if kind not in SCALARS:
            raise self.fault(f"{name!r} has the unknown value type {kind}")
        return SCALARS[kind]

    def _array(self, name: str, depth: int) -> Any:
        what = f"the array {name!r}"
        kind, count = self.u32(what), self.u64(what)
        if kind == STRING:
            return self._string_array(name, count)
        if kind == ARRAY:
            self._arrays_left -= count
            if depth + 1 >= MAX_DEPTH or self._arrays_left < 0:
                raise self.fault(f"{what} nests too deeply or holds too many arrays")
            return tuple(self.value(ARRAY, name, depth + 1) for _ in range(count))
        number = self._scalar(kind, name)
        values = array(number.format[-1], self.raw(count * number.size, what))
        if sys.byteorder == "big":
            values.byteswap()
        if kind == BOOL and count and max(values) > 1:
            raise self.fault(f"{what} holds something else than truth values")
        return values

    def _string_array(self, name: str, count: int) -> Strings:
        what, begin = f"the array {name!r}", self.position
        self.need(begin + 8 * count, what)
        self._strings_left -= count
        if self._strings_left < 0:
            raise self.fault(f"{what} holds {count} strings; at most {MAX_STRINGS} are read")
        data, size, unpack, position = self._data, self._size, _U64.unpack_from, begin
        starts = array("Q")
        for _ in range(count):
            position += 8
            if position > size:  # told here, as a call for each string would double the time
                self.need(position, what)
            starts.append(position - begin)
            position += unpack(data, position - 8)[0]
        self.need(position, what)
        starts.append(position - begin + 8)
        self.position = position
        return Strings(data[begin:position], starts, name)
