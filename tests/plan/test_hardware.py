"""The table of devices."""

from __future__ import annotations

import pytest
from tests.plan.ask import request

from kvik.errors import KvikError
from kvik.plan.document import document
from kvik.plan.fit import Load
from kvik.plan.hardware import MIB, devices, find_device


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("h100", 81_559), ("H100 80GB", 81_559), ("nvidia-h200", 143_771),
        ("H200 SXM 141GB", 143_771),
        ("RTX4090", 24_564),
        ("rtx 4090", 24_564), ("L40S", 46_068), ("gb200", 189_471), ("B300", 275_040),
        ("GB300", 284_208), ("a100-40gb", 40_960), ("a100 40 sxm", 40_960),
        ("A100-SXM4-40GB", 40_960),
        ("A100 80GB PCIe", 81_920), ("mi300x", 196_592),
        ("rtx pro 6000", 97_887), ("m3 ultra", 512 * 1024), ("tpu v5e", 16_384),
    ],
)  # fmt: skip
def test_names_and_memory(name: str, mib: int) -> None:
    assert find_device(name).memory_bytes == mib * MIB


def test_memory_is_not_the_marketed_number() -> None:
    """24 GB of an RTX 4090 are neither 24e9 bytes nor 24 GiB."""
    found = find_device("rtx 4090").memory_bytes
    assert 24e9 < found < 24 * 2**30


def test_apple_shares_its_memory_with_the_system() -> None:
    """The GPU may take about three quarters unless a limit is raised."""
    for device in devices().values():
        apple = device.source.startswith("Apple")
        assert device.kept_bytes == (device.memory_bytes // 4 if apple else 0)
    mac = find_device("m3 ultra")
    load = Load(8192, 1, memory=mac.memory_bytes, kept=mac.kept_bytes)
    found = document(request("llama-3-8b", 8192), load, "fp16")
    other = document(request("llama-3-8b", 8192), Load(8192, 1, memory=384 << 30), "fp16")
    assert found["max_batch"] == other["max_batch"]
    assert found["device"]["memory_bytes"] == 512 << 30
    assert any("the system keeps 137,438,953,472 B" in note for note in found["notes"])


def test_every_device_has_its_figures_and_its_source() -> None:
    for device in devices().values():
        assert 10_000 < device.memory_mib < 600_000
        assert 250 < device.bandwidth < 10_000
        assert device.flops16 is None or 10 < device.flops16 < 3000
        assert device.flops8 is None or device.flops16 is not None
        assert len(device.source) > 4
        assert find_device(device.name.upper()) == device


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("h1000", "H100"),
        ("a100", "A100-40GB or A100-80GB"),
        ("toaster", "known: T4"),
        ("", "known"),
    ],
)
def test_unknown_devices_name_the_nearest(name: str, words: str) -> None:
    with pytest.raises(KvikError, match=words):
        find_device(name)
