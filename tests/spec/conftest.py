"""A small GGUF file, written by the format's own package."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest


@pytest.fixture(scope="session")
def small_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of metadata, and two tensors."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -3)
    writer.add_uint16("u16", 60_000)
    writer.add_int16("i16", -300)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -70_000)
    writer.add_uint64("u64", 1 << 63)
    writer.add_int64("i64", -(1 << 62))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "naïve 한국어 🙂")
    writer.add_array("tokens", ["a", "", "한", "<|end|>"])
    writer.add_array("scores", [0.5, -1.0])
    writer.add_array("kinds", [1, -2, 3])
    writer.add_array("flags", [True, False, True])
    writer.add_array("nested", [[1, 2], [3, 4]])
    writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("two", np.arange(64, dtype=np.float16).reshape(2, 32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
