"""An earlier comparison to set a new one against: read, checked, and the differences."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvik.errors import KvikError

MAX_BYTES = 64 << 20
# What has to be a number, or null in the row of a recipe that failed.
NUMBERS = (
    "measured_bytes",
    "bytes_per_token",
    "kl_mean",
    "kl_p99",
    "top1",
    "ppl",
    "prefill_tok_s",
    "decode_tok_s",
    "peak_rss_bytes",
)
NEEDLES = ("needle_hits", "needle_total")
# The others are any number from 0. No model gives a token less than e^-10,000.
RANGES = {
    "kl_mean": (0.0, 1e4),
    "kl_p99": (0.0, 1e4),
    "top1": (0.0, 1.0),
    "ppl": (1.0, math.inf),
    "prefill_tok_s": (1e-6, math.inf),
    "decode_tok_s": (1e-6, math.inf),
    "peak_rss_bytes": (1, math.inf),
}
WHOLE = ("measured_bytes", "peak_rss_bytes", "needle_hits", "needle_total")
MACHINE = ("cpu", "cores", "instruction_sets", "threads")
RUN_AGAIN = "run that comparison again with this version"


@dataclass(frozen=True)
class Baseline:
    """A compare.json: what it was measured on, and its figures by recipe."""

    name: str
    document: Mapping[str, Any]

    def check(self, model_sha256: str, context: int, text_sha256: str, offsets: int) -> None:
        """KvikError unless it is of the same weights, context and text."""
        theirs = self.document
        model = theirs["model"][:80]
        if "model_sha256" not in theirs or "text" not in theirs:
            raise KvikError(
                f"{self.name} does not say which weights and text it is of (an older version made "
                f"it): {RUN_AGAIN}"
            )
        if theirs["model_sha256"] != model_sha256:
            raise KvikError(
                f"{self.name} is of other weights ({model}): compare the same model, or leave "
                "--baseline out"
            )
        if theirs["context"] != context:
            raise KvikError(
                f"{self.name} is of {theirs['context']:,} tokens of context, not {context:,}: "
                f"give --context {theirs['context']}"
            )
        if theirs["text"]["sha256"] != text_sha256:
            raise KvikError(
                f"{self.name} was measured on another text ({theirs['text']['name'][:80]}): give "
                "the same --text"
            )
        if theirs["quality"]["offsets"] != offsets:
            raise KvikError(
                f"{self.name} was measured at other places of the text: give --offsets "
                f"{theirs['quality']['offsets']}"
            )

    def compare(self, document: dict[str, Any]) -> None:
        """Adds ``baseline`` to a new comparison, and ``change`` (new less old) to its results."""
        warnings = self.warnings(document)
        same_needles = _needles(self.document) == _needles(document)
        old = {result["recipe"]: result for result in self.document["results"]}
        keys = NUMBERS + (NEEDLES if same_needles else ())
        for result in document["results"]:
            before = old.pop(result["recipe"], None)
            result["change"] = None if before is None else _differences(before, result, keys)
        document["baseline"] = {
            "file": Path(self.name).name,
            "env": self.document["env"],
            "warnings": warnings,
            "left_out": list(old),
        }

    def warnings(self, document: Mapping[str, Any]) -> list[str]:
        """Why some of the differences may come from elsewhere than from kvik."""
        found = []
        theirs, ours = self.document["env"], document["env"]
        other = [key for key in MACHINE if theirs.get(key) != ours.get(key)]
        if other:
            words = ", ".join(key.replace("_", " ") for key in other)
            found.append(f"speeds and {self.name}'s are of different machines ({words})")
        if _needles(self.document) != _needles(document):
            found.append(f"{self.name} asked for other needles, so their counts are not compared")
        return found


def _needles(document: Mapping[str, Any]) -> Any:
    asked = document.get("needle")
    return asked and (asked.get("sha256"), asked.get("cells"))


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], keys: tuple[str, ...]
) -> dict[str, float | None]:
    """For each figure new less old; None where one of the two has none."""

    def less(key: str) -> float | None:
        a, b = after[key], before[key]
        return None if a is None or b is None else a - b

    return {key: less(key) for key in keys}


def read(path: str | Path) -> Baseline:
    """The comparison at ``path``; KvikError in one line for anything else."""
    name = str(path)
    if not name:
        raise KvikError("--baseline is empty: give an earlier compare.json, or leave it out")
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise KvikError(f"cannot read {name}: {reason or error}") from None
    try:
        if len(data) > MAX_BYTES:
            raise ValueError
        document = json.loads(data.decode("utf-8"), parse_constant=_no_number)
        _check(document)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise KvikError(
            f"{name} is no compare.json of kvik compare: give the file that an earlier run left "
            "in its --out folder"
        ) from None
    return Baseline(name, document)


def _no_number(_: str) -> float:
    raise ValueError


def _check(document: Any) -> None:
    """ValueError, KeyError or TypeError unless it has what is read here, of the right kind."""
    _expect(isinstance(document["model"], str))
    _expect(isinstance(document["env"], dict))
    _expect(type(document["context"]) is int)
    _expect(isinstance(document["results"], list) and bool(document["results"]))
    recipes = [result["recipe"] for result in document["results"]]
    _expect(len(set(recipes)) == len(recipes))
    for result in document["results"]:
        _expect(isinstance(result["recipe"], str))
        for key in NUMBERS + NEEDLES:
            value = result[key]
            _expect(_possible(key, value) or (value is None and "error" in result))
        _expect((result["needle_hits"] or 0) <= (result["needle_total"] or 0))
    if "model_sha256" in document:
        _expect(isinstance(document["model_sha256"], str))
        _expect(isinstance(document["text"]["name"], str))
        _expect(isinstance(document["text"]["sha256"], str))
        _expect(type(document["quality"]["offsets"]) is int)
        _expect(document.get("needle") is None or isinstance(document["needle"], dict))


def _possible(key: str, value: Any) -> bool:
    """Whether a figure may have this value: counts, bytes and speeds are not negative."""
    kinds = (int,) if key in WHOLE else (int, float)
    if type(value) not in kinds or not math.isfinite(value):
        return False
    least, most = RANGES.get(key, (0.0, math.inf))
    return bool(least <= value <= most)


def _expect(true: bool) -> None:
    if not true:
        raise ValueError
