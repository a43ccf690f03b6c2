"""An earlier comparison is checked before anything runs, and set against the new one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvik.errors import KvikError
from kvik.evaluate.baseline import NEEDLES, NUMBERS, Baseline, read


def kept(folder: Path, document: Any) -> Path:
    path = folder / "compare.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def check(baseline: Baseline, new: dict[str, Any]) -> None:
    baseline.check(
        new["model_sha256"], new["context"], new["text"]["sha256"], new["quality"]["offsets"]
    )


def test_a_comparison_differs_in_nothing_from_itself(
    comparison: dict[str, Any], tmp_path: Path
) -> None:
    before = read(kept(tmp_path, comparison))
    check(before, comparison)
    before.compare(comparison)
    assert comparison["baseline"]["warnings"] == []
    assert comparison["baseline"]["left_out"] == []
    for result in comparison["results"]:
        assert result["change"] == dict.fromkeys((*NUMBERS, *NEEDLES), 0)
    # The outcome can be a baseline in turn.
    check(read(kept(tmp_path, comparison)), comparison)


def test_differences_are_new_less_old(comparison: dict[str, Any], tmp_path: Path) -> None:
    old = json.loads(json.dumps(comparison))
    old["results"][1]["kl_mean"] += 1.0
    old["results"][2]["error"] = "no luck"
    old["results"][2] |= dict.fromkeys((*NUMBERS, *NEEDLES))
    old["results"][3]["recipe"] = "int2"
    read(kept(tmp_path, old)).compare(comparison)
    changes = [result["change"] for result in comparison["results"]]
    assert changes[1]["kl_mean"] == pytest.approx(-1.0)
    assert set(changes[2].values()) == {None}
    assert changes[3] is None
    assert comparison["baseline"]["left_out"] == ["int2"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model_sha256", "0" * 64, "other weights"),
        ("context", 499, "give --context 499"),
        ("text", {"name": "book.txt", "sha256": "0"}, r"another text \(book.txt\)"),
        ("quality", {"offsets": 3, "scored": 1536}, "--offsets 3"),
    ],
)
def test_another_measurement_is_refused(
    comparison: dict[str, Any], tmp_path: Path, key: str, value: Any, words: str
) -> None:
    before = read(kept(tmp_path, comparison | {key: value}))
    with pytest.raises(KvikError, match=words):
        check(before, comparison)


def test_a_file_of_an_older_version_is_refused(comparison: dict[str, Any], tmp_path: Path) -> None:
    old = {key: comparison[key] for key in ("model", "context", "env", "results")}
    with pytest.raises(KvikError, match="older version"):
        check(read(kept(tmp_path, old)), comparison)


def test_another_machine_is_told(comparison: dict[str, Any], tmp_path: Path) -> None:
    old = comparison | {"env": comparison["env"] | {"threads": 99, "cpu": "other", "torch": "1"}}
    read(kept(tmp_path, old)).compare(comparison)
    (warning,) = comparison["baseline"]["warnings"]
    assert "(cpu, threads)" in warning


def test_other_needles_are_not_compared(comparison: dict[str, Any], tmp_path: Path) -> None:
    old = comparison | {"needle": comparison["needle"] | {"sha256": "0" * 64}}
    read(kept(tmp_path, old)).compare(comparison)
    assert "other needles" in comparison["baseline"]["warnings"][0]
    assert "needle_hits" not in comparison["results"][0]["change"]
    assert comparison["results"][0]["change"]["kl_mean"] == 0


BAD = {
    "empty": "",
    "no JSON": "<html>",
    "a list": "[]",
    "null": "null",
    "a number": "1",
    "another object": '{"results": []}',
    "not a number": '{"model": "m", "context": NaN, "env": {}, "results": []}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(KvikError, match=r"no compare\.json"):
        read(kept(tmp_path, text))


@pytest.mark.parametrize("value", ["1", None, True, [], 10**400], ids=str)
def test_a_figure_that_is_no_number_is_refused(
    comparison: dict[str, Any], tmp_path: Path, value: Any
) -> None:
    comparison["results"][1]["ppl"] = value
    with pytest.raises(KvikError, match=r"no compare\.json"):
        read(kept(tmp_path, comparison))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ppl", 0.5),
        ("kl_mean", -0.1),
        ("kl_p99", 1e308),
        ("top1", 1.01),
        ("needle_hits", -1),
        ("needle_hits", 99),
        ("needle_hits", 1.5),
        ("measured_bytes", 1.5),
        ("prefill_tok_s", 0),
        ("peak_rss_bytes", 0),
        ("decode_tok_s", 1e-300),
        ("measured_bytes", -1),
    ],
)
def test_a_figure_that_cannot_be_is_refused(
    comparison: dict[str, Any], tmp_path: Path, key: str, value: float
) -> None:
    comparison["results"][1][key] = value
    with pytest.raises(KvikError, match=r"no compare\.json"):
        read(kept(tmp_path, comparison))


def test_a_file_of_nothing_or_of_a_recipe_twice_is_refused(
    comparison: dict[str, Any], tmp_path: Path
) -> None:
    twice = [*comparison["results"], comparison["results"][0]]
    for results in ([], twice):
        with pytest.raises(KvikError, match=r"no compare\.json"):
            read(kept(tmp_path, comparison | {"results": results}))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, "a\0b"):
        with pytest.raises(KvikError, match="cannot read"):
            read(path)
    (tmp_path / "bytes").write_bytes(os.urandom(4000) + b"\xff")
    with pytest.raises(KvikError, match=r"no compare\.json"):
        read(tmp_path / "bytes")
