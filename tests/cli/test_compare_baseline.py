"""``kvik compare --baseline`` as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Call


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot read"), ("{}", "no compare.json of kvik compare")]
)
def test_a_baseline_of_no_use_is_refused_before_anything_runs(
    kvik: Call, tiny_base_model: Path, tmp_path: Path, content: str | None, words: str
) -> None:
    path, out = tmp_path / "old.json", tmp_path / "out"
    if content is not None:
        path.write_text(content)
    options = ("--kv", "int8", "--context", "32", "--baseline", str(path), "--out", str(out))
    done = kvik("compare", str(tiny_base_model), *options)
    assert (done.status, done.out) == (2, "")
    assert words in done.line
    assert not out.exists()


@pytest.mark.slow
def test_a_second_run_tells_what_changed(kvik: Call, tiny_base_model: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    options = ("compare", str(tiny_base_model), "--kv", "int4", "--context", "40")
    first = kvik(*options, "--out", str(old))
    assert first.status == 0
    baseline = ("--baseline", str(old / "compare.json"))
    other = kvik(*options[:-1], "41", *baseline)
    assert other.status == 2
    assert "give --context 40" in other.line

    # As if the first run had been of another cache.
    facts = json.loads((old / "compare.json").read_text())
    facts["results"][0]["kl_mean"] += 0.5
    facts["env"]["threads"] += 1
    (old / "compare.json").write_text(json.dumps(facts))
    done = kvik(*options, *baseline, "--out", str(new))
    assert done.status == 0
    assert "−0.50" in done.out
    assert "of different machines (threads)" in done.err
    change = json.loads((new / "compare.json").read_text())["results"][0]["change"]
    assert change["kl_mean"] == pytest.approx(-0.5)
    assert change["measured_bytes"] == 0
    assert "<small>−0.50</small>" in (new / "report.html").read_text()
