"""How long kvik takes to answer, beside the time of an empty Python and of importing torch.

python bench/startup.py --out bench/results/startup.jsonl
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import emit

PLAN = ["-m", "kvik", "plan", "gemma-3-27b", "--kv", "int8/int4", "--device", "h100"]
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "kvik --help": ["-m", "kvik", "--help"],
    "kvik plan": PLAN,
    "kvik plan --explain --stack": [*PLAN, "--explain", "--stack"],
    "import torch": ["-c", "import torch"],
}


def seconds(args: list[str], folder: str) -> float:
    """Processor time of one run in a fresh process, bytecode cached as it is when installed."""
    env = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    start = os.times()
    subprocess.run([sys.executable, *args], check=True, capture_output=True, env=env)
    stop = os.times()
    used = stop.children_user + stop.children_system
    return used - start.children_user - start.children_system


def main() -> None:
    """Measure every command in turn, several times over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("bench/results/startup.jsonl"))
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.rounds + 1):
            for name, command in COMMANDS.items():
                used = seconds(command, folder)
                if turn:  # the first turn compiles
                    found[name].append(used)
    record = {
        name: {"least_s": round(min(runs), 3), "median_s": round(statistics.median(runs), 3)}
        for name, runs in found.items()
    }
    load = os.getloadavg()[0]
    emit(args.out, {"bench": "startup", "load": load, "rounds": args.rounds, "cpu_time": record})


if __name__ == "__main__":
    main()
