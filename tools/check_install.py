"""Whether an installed kvik has its native library: what a wheel is tried with.

    python tools/check_install.py native     (it must be there, load and compute)
    python tools/check_install.py none       (it must be absent, with the reason given)

Needs nothing but kvik; ends with 1 and the reason when it is not so.
"""

from __future__ import annotations

import ctypes
import json
import math
import subprocess
import sys

from kvik import native


def main() -> None:
    """Compare what doctor says, and what the library computes, with what is asked for."""
    expected = sys.argv[1]
    doctor = [sys.executable, "-m", "kvik", "doctor", "--json"]
    found = json.loads(subprocess.run(doctor, check=True, capture_output=True).stdout)["native"]
    print(json.dumps(found, indent=1))
    if expected == "none":
        sys.exit(0 if found["file"] is None and found["why"] else "there is a native library")
    lib = native.library()
    if lib is None or found["file"] is None:
        sys.exit("there is no native library")
    if found["variant"] == "scalar":
        sys.exit("only the scalar kernels: this machine's instruction set was not built")
    numbers = ctypes.c_float * 8
    result = numbers()
    for variant in native.variants(lib):
        native.select(lib, variant)
        lib.kvik_exp(numbers(*range(8)), result, ctypes.c_int64(8))
        if any(abs(y / math.exp(x) - 1) > 1e-6 for x, y in enumerate(result)):
            sys.exit(f"{variant}: e^x is wrong: {list(result)}")


if __name__ == "__main__":
    main()
