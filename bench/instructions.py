"""Instructions that the main kernels execute, counted by callgrind: a measure without a clock.

    python bench/instructions.py            (writes bench/results/instructions.jsonl)
    python bench/instructions.py --check    (compares with it; ends with 1 when a kernel grew)

One thread, the AVX2 variant, one line per kernel. A count holds for one compiler version; with
another, record anew. Needs valgrind and a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "bench" / "results" / "instructions.jsonl"
VARIANT = "avx2"
TOLERANCE = 0.03


def compiler() -> str:
    """The compiler's name and version, as it says them."""
    done = subprocess.run(["c++", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def build(folder: Path) -> None:
    """Compile the counting program as the library is."""
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or "cmake"
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(folder), "-DKVIK_TESTS=ON"],
        [cmake, "--build", str(folder), "--target", "count"],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def kernels(program: Path) -> list[str]:
    """The names of the kernels that the program knows."""
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def count(program: Path, kernel: str) -> int:
    """Instructions from the call of the kernel to its return."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += ["--toggle-collect=counted", str(program), kernel, VARIANT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if found is None:
        raise RuntimeError(f"callgrind collected nothing for {kernel}: {done.stderr[-500:]}")
    return int(found[1])


def measure(folder: Path) -> dict[str, int]:
    """Every kernel's count, by the program in a build folder."""
    program = folder / "csrc" / "tests" / "count"
    return {kernel: count(program, kernel) for kernel in kernels(program)}


def recorded() -> list[dict[str, str | int]]:
    """The lines of the records."""
    return [json.loads(line) for line in RECORDS.read_text().splitlines()]


def grown(found: dict[str, int], records: list[dict[str, str | int]]) -> list[str]:
    """What differs from the records by more than the tolerance, either way, or is in one only."""
    before = {str(record["kernel"]): int(record["instructions"]) for record in records}
    faults = [f"{name}: recorded but gone" for name in before.keys() - found.keys()]
    for name, now in found.items():
        if name not in before:
            faults.append(f"{name}: {now}, not recorded")
        elif abs(now / before[name] - 1) > TOLERANCE:
            faults.append(f"{name}: {now}, recorded {before[name]}")
    return sorted(faults)


def main() -> int:
    """Record, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        found = measure(Path(folder))
    for name, instructions in found.items():
        print(f"{name:24} {instructions:>14,}")
    if check:
        faults = grown(found, recorded())
        print("\n".join(faults) or f"all within {TOLERANCE:.0%}")
        return 1 if faults else 0
    with RECORDS.open("w") as file:
        for name, instructions in found.items():
            line = {"kernel": name, "variant": VARIANT, "instructions": instructions}
            file.write(json.dumps(line | {"compiler": compiler()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
