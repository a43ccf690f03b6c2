"""docs/claims.md is what its command makes, and its derived figures are right by arithmetic."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "claims_page.py"
PAGE = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
MIB, GIB = 2**20, 2**30
K, FOUR_K, THIRTY_TWO_K, LONG = 1024, 4096, 32 * 1024, 128 * 1024
# Bits: codes and a 16-bit scale for 128 of them; and a 16-bit scale and minimum for 32.
INT8, INT4 = 8 + Fraction(16, 128), 4 + Fraction(32, 32)

# Each from layers, heads and head dimensions as their papers and configurations have them.
LLAMA_3_8B = 2 * 32 * 8 * 128 * 2
LLAMA_2_7B = 2 * 32 * 32 * 128 * 2
LLAMA_2_70B, AS_MHA = (2 * 80 * heads * 128 * 2 for heads in (8, 64))
DEEPSEEK_67B = 2 * 95 * 8 * 128 * 2
DEEPSEEK_V2 = 60 * (512 + 64) * 2
WEIGHTS_7B = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11_008 + 2 * 4096) + 2 * 32_000 * 4096 + 4096


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    sys.path.insert(0, str(TOOL.parent))
    try:
        return importlib.import_module("claims_page")
    finally:
        sys.path.remove(str(TOOL.parent))


def test_the_page_is_what_the_command_makes() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_changed_page_is_noticed(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = tmp_path / "claims.md"
    changed.write_text(PAGE.replace("93.3", "93.4", 1))
    monkeypatch.setattr(sys, "argv", ["claims_page.py", "--check"])
    assert tool.write_or_check("claims_page.py", {changed: tool.page()}) == 1


def test_a_page_that_nothing_makes_is_noticed(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, left = tmp_path / "sub" / "made.md", tmp_path / "sub" / "left.md"
    assert tool.write_or_check("x.py", {made: "text"}, made.parent) == 0
    monkeypatch.setattr(sys, "argv", ["x.py", "--check"])
    assert tool.write_or_check("x.py", {made: "text"}, made.parent) == 0
    left.write_text("of a stage that is gone")
    assert tool.write_or_check("x.py", {made: "text"}, made.parent) == 1


def _by_hand() -> dict[str, int | Fraction]:
    kv_7b = LLAMA_2_7B * FOUR_K
    found: dict[str, int | Fraction] = {
        "l3_token": LLAMA_3_8B,
        "l3_4096": 512 * MIB,
        "l3_32768": 4 * GIB,
        "l3_131072": 16 * GIB,
        "l2_4096": 2 * GIB,
        "l2_131072": 64 * GIB,
        "big_mha_4096": 10 * GIB,
        "big_mha_131072": 320 * GIB,
        "big_4096": 5 * GIB // 4,
        "big_131072": 40 * GIB,
        "big_saving": Fraction(7, 8),
        "groups": 8,
        "queries": 4,
        "window": 4096,
        "window_layers": 32,
        "reach_said": 131_072,
        "reach_exact": 131_040,
        "mla_token": DEEPSEEK_V2,
        "old_token": DEEPSEEK_67B,
        "mla_saving_16": 1 - Fraction(DEEPSEEK_V2, DEEPSEEK_67B),
        "mla_saving_6": 1 - Fraction(DEEPSEEK_V2 * 6, DEEPSEEK_67B * 16),
        "mla_values": 576,
        "mla_own_mha": 1 - Fraction(576, 128 * (128 + 64 + 128)),
        "mla_gqa8": 1 - Fraction(576, 2 * 8 * 128),
        "mla_gqa4": 1 - Fraction(576, 2 * 4 * 128),
        "mla_groups": Fraction(9, 4),
        "bits_int8": INT8,
        "bits_int4": INT4,
        "bits_k8v4": (INT8 + INT4) / 2,
        "bits_kivi2": Fraction(3),
        "bits_kivi4": Fraction(5),
        "h2o_kept": 819,
        "h2o_4096": 819 * LLAMA_2_7B,
        "again_kept": 1279,
        "again_bare": sum(range(1024, 1280)),
        "again_ratio": Fraction(sum(range(1024, 1280)), 1279),
        "saved_kv": 8 * kv_7b - 8 * kv_7b * INT8 / 16,
    }
    for bits in (2, 4):
        coded = (FOUR_K - 128) * Fraction(bits + 1, 16) + 128
        found[f"kivi{bits}_4096"] = LLAMA_2_7B * coded
    for weights, size in (("fp16", 2 * WEIGHTS_7B), ("q4_0", _q4_0())):
        for cache, bits in (("fp16", Fraction(16)), ("int8", INT8)):
            found[f"sum_{weights}_{cache}"] = size + 8 * kv_7b * bits / 16
    found["saved_weights"] = 2 * WEIGHTS_7B - _q4_0()
    return found


def _q4_0() -> int:
    """18 bytes for 32 parameters."""
    return WEIGHTS_7B * 18 // 32


def test_derived_figures_are_right_by_hand(tool: ModuleType) -> None:
    found, wanted = tool.derived(), _by_hand()
    assert found.keys() == wanted.keys()
    assert {name: found[name] for name in wanted} == wanted


def test_the_facts_are_on_the_page() -> None:
    for fact in (
        "| Llama-3-8B (131,072 bytes a token) | 0.5 | 4 | 16 |",
        "| Llama-2-7B | 2 | | 64 |",
        "| Llama-2-70B as it is, 8 of 64 KV heads | 1.25 | | 40 |",
        "| Llama-2-70B counted as MHA | 10 | | 320 |",
        "4 times too high even so",
        "GQA saves 87.5 %",
        "8 groups of 4 queries",
        "= 131,072",
        "reaches 131,040 tokens back",
        "| DeepSeek-V2, MLA, 6 bits | 25,920 | 93.3 % |",
        "as much as 2.25 such heads",
    ):
        assert fact in PAGE, fact


def test_what_adds_up_adds_up(tool: ModuleType) -> None:
    d, m = tool.derived(), tool.measured()
    assert d["sum_q4_0_int8"] == d["sum_fp16_fp16"] - d["saved_weights"] - d["saved_kv"]
    assert tool.related(d, m)["sum_error"] < 0.25


def test_no_technique_that_is_missing_has_a_measured_figure() -> None:
    """The page must be taken up again when H2O and KIVI come."""
    from kvik.recipe.stage import load_stages

    missing = {"h2o", "kivi"} - load_stages().keys()
    assert PAGE.count("ot measured: not in kvik yet") >= len(missing)
    assert missing == {"h2o", "kivi"}, "measure them in bench/claims.py and say so on the page"


def test_every_measured_figure_has_its_origin(tool: ModuleType) -> None:
    lines = (tool.RESULTS / "claims.jsonl").read_text().splitlines()
    for record in map(json.loads, lines):
        env = record["env"]
        assert env["command"].startswith("python bench/claims.py")
        assert re.fullmatch(r"[0-9a-f]{12}\+?", env["commit"])
        assert env["cpu"]
        assert env["cores"]
    timed = [r for r in map(json.loads, lines) if r["claim"] == "no-cache"]
    assert all(r["ratio_min"] <= r["ratio"] <= r["ratio_max"] for r in timed)


def test_what_the_measurements_must_show(tool: ModuleType) -> None:
    """Laws, not figures: paging changes nothing, and nothing comes from beyond the reach."""
    m = tool.measured()
    for recipe in ("fp16", "int8_int4"):
        assert m[f"paging_{recipe}"]["logit_change"] == 0
    assert m["reach_210"]["window_logit_change"] > 0
    assert m["reach_211"]["window_logit_change"] == 0
    assert m["w16_int8"]["kl"] < m["w16_int8_int4"]["kl"] < m["w16_int4"]["kl"]
    assert m["bare_128"]["ratio"] < m["bare_512"]["ratio"] < m["bare_1024"]["ratio"]


def test_the_verdicts_follow_from_the_figures(tool: ModuleType) -> None:
    """What the page says in words, so that other records cannot leave it standing."""
    d, m = tool.derived(), tool.measured()
    assert m["w16_int8"]["ppl_ratio"] - 1 < 0.005
    assert m["w16_int4"]["ppl_ratio"] - 1 > 0.05
    assert m["bare_128"]["ratio"] > 10
    assert m["bare_1024"]["ratio"] > 100
    assert m["reach_105"]["window_kl"] < 1e-3 * m["reach_105"]["full_kl"]
    assert 0.6 < m["waste_Oracle"] < m["waste_Max"] < 0.8
    assert 2 < m["more_than_Oracle"] < m["more_than_Max"]
    assert tool.related(d, m)["k8v4_over_int8"] < tool.related(d, m)["int4_over_int8"] / 4
    assert d["mla_gqa4"] < 0.5 < 0.7 < d["mla_gqa8"]
    assert len({r["env"]["commit"] for r in tool.records("claims")}) == 1
