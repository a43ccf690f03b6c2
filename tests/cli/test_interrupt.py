"""An interrupted or terminated comparison leaves no process, no file and no folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_interrupted_comparison_leaves_nothing(
    tiny_model: Path, tmp_path: Path, number: signal.Signals, status: int, word: str
) -> None:
    temporary, out = tmp_path / "tmp", tmp_path / "out"
    temporary.mkdir()
    command = f"compare {tiny_model} --kv none --context 2000 --out {out}"
    process = subprocess.Popen(
        [sys.executable, "-m", "kvik", *command.split()],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    while not (workers := psutil.Process(process.pid).children()):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert "Traceback" not in err
    assert err.strip().endswith(f"kvik: {word}")
    assert not any(worker.is_running() for worker in workers)
    assert list(temporary.iterdir()) == []
    assert not out.exists()
