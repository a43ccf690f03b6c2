"""What is sold to run models on: memory, bandwidth and speed of devices."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvik.errors import KvikError

DATA = Path(__file__).with_name("hardware.json")
MIB = 1 << 20
_SILENT = re.compile(r"\b(nvidia|geforce|tesla|amd|instinct|apple|google|sxm\d?|blackwell|bw)\b")
_SIZE = re.compile(r"(16|24|32|40|48|80|94|96|141|180|192|256|288)gb$")


@dataclass(frozen=True)
class Device:
    """One accelerator or machine; None is what is not known or does not apply.

    ``memory_mib`` is what the driver reports, which is not the marketed number of GB. Bandwidths
    are in 10^9 bytes a second (``link`` in each direction), speeds in dense 10^12 operations a
    second: ``flops16`` in bf16 or fp16, ``flops8`` in fp8, or int8 where there is none.
    ``usable`` is the share of memory that the device may take of what it shares with the system.
    """

    name: str
    memory_mib: int
    bandwidth: float
    flops16: float | None
    flops8: float | None
    link: float | None
    source: str
    usable: float = 1.0

    @property
    def memory_bytes(self) -> int:
        """Device memory in bytes."""
        return self.memory_mib * MIB

    @property
    def kept_bytes(self) -> int:
        """What the system keeps of them."""
        return self.memory_bytes - int(self.usable * self.memory_bytes)


@cache
def devices() -> dict[str, Device]:
    """Every known device by its name."""
    rows = json.loads(DATA.read_text(encoding="utf-8"))
    return {row["name"]: Device(**row) for row in rows}


def find_device(name: str) -> Device:
    """The device called ``name``; case, spaces and hyphens do not matter.

    KvikError names the nearest ones for a name that is unknown or fits several.
    """
    by_key = {_key(known): device for known, device in devices().items()}
    key = _key(name)
    # The size may be left out where there is one only, or said where the name has none.
    for known in (key, key + "gb", _SIZE.sub("", key)):
        if known in by_key:
            return by_key[known]
    begun = [device.name for known, device in by_key.items() if key and known.startswith(key)]
    if len(begun) == 1:
        return devices()[begun[0]]
    near = begun or [
        by_key[k].name for k in difflib.get_close_matches(key[:40], by_key, n=3, cutoff=0.5)
    ]
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(devices())}"
    raise KvikError(f"no device {name[:40]!r}: {hint} (--memory SIZE plans for any other)")


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _SILENT.sub("", name.casefold()))
