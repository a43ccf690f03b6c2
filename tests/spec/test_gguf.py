"""The GGUF header: what it says is read, and what is wrong with it is told, fast."""

from __future__ import annotations

import struct
import time
from contextlib import suppress
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvik.errors import SpecError
from kvik.spec.ggml import TENSOR_TYPES
from kvik.spec.gguf import read_header

U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def gguf_bytes(
    *parts: bytes,
    pairs: int = 0,
    tensors: int = 0,
    version: int = 3,
    magic: bytes = b"GGUF",
    data: int = 0,
    align: int = 32,
) -> bytes:
    head = magic + struct.pack("<IQQ", version, tensors, pairs) + b"".join(parts)
    return head + bytes(-len(head) % align + data) if data else head


@pytest.fixture
def refused(tmp_path: Path):
    """The message with which a file of the given bytes is refused, in well under a second."""

    def message(content: bytes) -> str:
        path = tmp_path / "x.gguf"
        path.write_bytes(content)
        start = time.perf_counter()
        with pytest.raises(SpecError) as error:
            read_header(path)
        assert time.perf_counter() - start < 2
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
        return str(error.value)

    return message


def test_every_kind_of_value_is_read(small_gguf: Path):
    read = read_header(small_gguf).metadata
    plain = {key: read[key] for key in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")}
    assert plain == {
        "u8": 200,
        "i8": -3,
        "u16": 60_000,
        "i16": -300,
        "u32": 4_000_000_000,
        "i32": -70_000,
        "u64": 1 << 63,
        "i64": -(1 << 62),
    }
    assert (read["f32"], read["f64"], read["yes"]) == (0.5, 0.1, True)
    assert read["text"] == "naïve 한국어 🙂"
    assert list(read["tokens"]) == ["a", "", "한", "<|end|>"]
    assert (read["tokens"][-1], read["tokens"][1:3], len(read["tokens"])) == (
        "<|end|>",
        ["", "한"],
        4,
    )
    assert list(read["scores"]) == [0.5, -1.0]
    assert list(read["kinds"]) == [1, -2, 3]
    assert list(read["flags"]) == [1, 0, 1]
    assert [list(row) for row in read["nested"]] == [[1, 2], [3, 4]]


def test_an_index_past_the_strings_raises(small_gguf: Path):
    with pytest.raises(IndexError):
        read_header(small_gguf).metadata["tokens"][4]


def test_tensors_are_where_the_formats_own_reader_finds_them(small_gguf: Path):
    header = read_header(small_gguf)
    theirs = gguf.GGUFReader(small_gguf)
    assert list(header.tensors) == [tensor.name for tensor in theirs.tensors]
    for other in theirs.tensors:
        ours = header.tensors[other.name]
        assert (ours.offset, ours.nbytes) == (other.data_offset, other.n_bytes)
        assert ours.shape == tuple(int(n) for n in other.shape[::-1])
        assert ours.type == other.tensor_type.name


def test_block_sizes_are_the_formats():
    known = {kind.value: sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    for code, kind in TENSOR_TYPES.items():
        assert known[code] == (kind.elements, kind.nbytes)
        assert gguf.GGMLQuantizationType(code).name == kind.name


def test_version_2_is_read(tmp_path: Path):
    path = tmp_path / "two.gguf"
    path.write_bytes(gguf_bytes(pair("a", U8, b"\7"), pairs=1, version=2))
    assert read_header(path).metadata == {"a": 7}


def test_alignment_of_the_file_is_kept(tmp_path: Path):
    path = tmp_path / "aligned.gguf"
    parts = pair("general.alignment", U32, struct.pack("<I", 4096)), tensor("t", (8,))
    path.write_bytes(gguf_bytes(*parts, pairs=1, tensors=1, data=32, align=4096))
    assert read_header(path).tensors["t"].offset == 4096


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"GG", "the file ends at byte 2"),
        (b"PK\3\4" + bytes(100), "not a GGUF file"),
        (gguf_bytes(version=1), "version 1"),
        (gguf_bytes(version=0x03000000), "big-endian"),
        (gguf_bytes(pairs=1 << 63), "metadata pairs"),
        (gguf_bytes(tensors=1 << 63), "tensors"),
        (gguf_bytes(struct.pack("<Q", 1 << 63), pairs=1), "fetch it again"),
        (gguf_bytes(struct.pack("<Q", 4) + b"\xff\xfe\xfd\xfc", pairs=1), "not UTF-8"),
        (gguf_bytes(text("k" * 2000), pairs=1), "2000 bytes long"),
        (gguf_bytes(pair("", U8, b"\1"), pairs=1), "empty"),
        (gguf_bytes(pair("a", U8, b"\1"), pair("a", U8, b"\1"), pairs=2), "'a' appears twice"),
        (gguf_bytes(pair("a", 13, b"\1"), pairs=1), "unknown value type 13"),
        (gguf_bytes(pair("a", BOOL, b"\2"), pairs=1), "cannot be 2"),
        (gguf_bytes(pair("a", ARRAY, struct.pack("<IQ", BOOL, 2) + b"\0\2"), pairs=1), "truth"),
        (gguf_bytes(pair("a", STRING, struct.pack("<Q", 1 << 62)), pairs=1), "the text of 'a'"),
        (gguf_bytes(pair("a", ARRAY, struct.pack("<IQ", U64, 1 << 61)), pairs=1), "the array 'a'"),
        (gguf_bytes(pair("a", ARRAY, struct.pack("<IQ", STRING, 1 << 61)), pairs=1), "the array"),
        (gguf_bytes(pair("a", ARRAY, struct.pack("<IQ", ARRAY, 1 << 61)), pairs=1), "too many"),
        (gguf_bytes(pair("a", ARRAY, struct.pack("<IQ", 99, 1)), pairs=1), "value type 99"),
        (gguf_bytes(pair("general.alignment", U32, struct.pack("<I", 48)), pairs=1), "alignment"),
        (gguf_bytes(pair("general.alignment", U32, bytes(4)), pairs=1), "alignment"),
        (gguf_bytes(pair("general.alignment", BOOL, b"\1"), pairs=1), "alignment"),
        (gguf_bytes(tensor("t", ()), tensors=1), "0 dimensions"),
        (gguf_bytes(tensor("t", (1,) * 5), tensors=1), "5 dimensions"),
        (gguf_bytes(tensor("t", (8, 0)), tensors=1), "impossible shape"),
        (gguf_bytes(tensor("t", (1 << 32, 1 << 32)), tensors=1), "impossible shape"),
        (gguf_bytes(tensor("t", (8,), kind=4), tensors=1), "unknown type 4"),
        (gguf_bytes(tensor("t", (33,), kind=2), tensors=1), "multiple of the 32"),
        (gguf_bytes(tensor("t", (8,), offset=8), tensors=1, data=64), "not aligned"),
        (gguf_bytes(tensor("t", (1 << 40,)), tensors=1, data=64), "tensor 't' needs"),
        (gguf_bytes(tensor("t", (8,), offset=1 << 63), tensors=1, data=64), "tensor 't' needs"),
        (gguf_bytes(tensor("t", (8,)), tensor("t", (8,)), tensors=2, data=64), "appears twice"),
        (gguf_bytes(tensor("t", (16,)), tensor("u", (8,), 0, 32), tensors=2, data=64), "overlap"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_wrong_is_told(refused, content: bytes, said: str):
    assert said in refused(content)


def test_arrays_nested_without_end_are_refused(refused):
    level = struct.pack("<IQ", ARRAY, 1)
    assert "nests too deeply" in refused(gguf_bytes(pair("a", ARRAY, level * 5000), pairs=1))


def test_a_vocabulary_beyond_any_is_refused(refused):
    count = (1 << 22) + 1
    value = struct.pack("<IQ", STRING, count) + bytes(8 * count)
    assert f"holds {count} strings" in refused(gguf_bytes(pair("a", ARRAY, value), pairs=1))


def test_a_string_that_runs_over_the_end_inside_an_array_is_refused(refused):
    value = struct.pack("<IQ", STRING, 2) + text("a") + struct.pack("<Q", (1 << 64) - 1)
    assert "the array 'a'" in refused(gguf_bytes(pair("a", ARRAY, value), pairs=1))


def test_tokens_that_are_not_utf8_are_told_where_they_are_read(tmp_path: Path):
    path = tmp_path / "x.gguf"
    value = struct.pack("<IQ", STRING, 2) + text("a") + struct.pack("<Q", 1) + b"\xff"
    path.write_bytes(gguf_bytes(pair("tokens", ARRAY, value), pairs=1))
    tokens = read_header(path).metadata["tokens"]
    assert tokens[0] == "a"
    with pytest.raises(SpecError, match="string 1 of 'tokens' is not UTF-8"):
        tokens[1]


def test_a_path_that_is_no_file_is_told(tmp_path: Path):
    with pytest.raises(SpecError, match="no such file"):
        read_header(tmp_path / "absent.gguf")
    with pytest.raises(SpecError, match="not a file"):
        read_header(tmp_path)


def test_a_truncated_file_says_where_it_ends(small_gguf: Path, refused):
    content = small_gguf.read_bytes()
    said = refused(content[:-40])
    assert f"the file ends at byte {len(content) - 40}; tensor 'two' needs" in said
    assert "fetch it again" in said


def test_a_cut_at_any_byte_is_refused(small_gguf: Path, tmp_path: Path):
    content = small_gguf.read_bytes()
    last = read_header(small_gguf).tensors["two"]
    path = tmp_path / "cut.gguf"
    for end in range(last.offset + last.nbytes):
        path.write_bytes(content[:end])
        with pytest.raises(SpecError):
            read_header(path)


@settings(max_examples=400, deadline=1000, suppress_health_check=list(HealthCheck))
@given(
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=6),
    cut=st.one_of(st.none(), st.integers(0, 1 << 20)),
)
def test_damaged_headers_end_in_a_spec_error_or_a_sound_header(
    small_gguf: Path, tmp_path: Path, flips: list[tuple[int, int]], cut: int | None
):
    content = bytearray(small_gguf.read_bytes())
    for at, mask in flips:
        content[at % len(content)] ^= mask
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content[: cut % len(content)] if cut is not None else content)
    try:
        header = read_header(path)
    except SpecError:
        return
    size = path.stat().st_size
    assert all(t.offset + t.nbytes <= size for t in header.tensors.values())


@settings(max_examples=200, deadline=1000, suppress_health_check=list(HealthCheck))
@given(body=st.binary(max_size=400), counts=st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_arbitrary_bytes_after_the_magic_end_in_a_spec_error(
    tmp_path: Path, body: bytes, counts: tuple[int, int]
):
    path = tmp_path / "random.gguf"
    path.write_bytes(gguf_bytes(body, tensors=counts[0], pairs=counts[1]))
    with suppress(SpecError):
        read_header(path)
