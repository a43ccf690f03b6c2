"""What a sweep's cells add up to: one row for each task, context and recipe.

Only what the dense cache can do is counted, and how much that is is stated. Differences are paired:
the same prompts, the same tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvik.evaluate.metrics import perplexity
from kvik.evaluate.statistics import BLOCK, Estimate, blocks, ratio, slope
from kvik.evaluate.tasks import REFERENCE, Task
from kvik.evaluate.tasks.recall import Recall

# Cells of a map count where the dense cache answers: as hits from this share on, by log-probability
# where the answer is likelier than the floor by so many nats.
ACCURACY, MARGIN = 0.9, 3.0
# Retention has an interval where every draw of the texts leaves such a share of the way up to the
# dense cache: a text on which that is barely above the floor would make it as wide as you like.
LEAST = 0.2

Cell = Mapping[str, Any]
Row = dict[str, Any]


def summarize(cells: Iterable[Cell], recipes: Sequence[str]) -> list[Row]:
    """Rows in the order of tasks, contexts and recipes; cells that failed are left out."""
    tasks: dict[str, dict[int, dict[str, list[Cell]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    repeats: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        if "values" not in cell:
            continue
        if cell["repeat"]:
            repeats[cell["task"]].append(cell)
        else:
            tasks[cell["task"]][cell["where"]["context"]][cell["recipe"]].append(cell)
    rows = []
    for name, contexts in tasks.items():
        kind = _Recalled if Task.registry[name].kind == "recall" else _Streamed
        noise = kind.noise_of(contexts, repeats[name])
        for context in sorted(contexts):
            rows += kind(name, context, contexts[context], recipes, noise).rows()
    return rows


class _Kind:
    """The rows of one task at one context."""

    def __init__(
        self,
        task: str,
        context: int,
        cells: Mapping[str, list[Cell]],
        recipes: Sequence[str],
        noise: float | None,
    ) -> None:
        self.task, self.context, self.noise = task, context, noise
        self.recipes = [r for r in dict.fromkeys((REFERENCE, *recipes)) if r in cells]
        found = {r: {c["unit"]: c["values"] for c in cells[r]} for r in self.recipes}
        dense = found.get(REFERENCE, {})
        self.units = [u for u in dense if all(u in found[r] for r in self.recipes)]
        self.cells = {r: {u: found[r][u] for u in self.units} for r in self.recipes}
        self.dense = self.cells.get(REFERENCE, {})

    def rows(self) -> list[Row]:
        """One a recipe, all over the same units: those that none of them failed in."""
        rows = []
        for recipe in self.recipes if self.units else ():
            row: Row = {
                "task": self.task,
                "context": self.context,
                "recipe": recipe,
                "units": len(self.units),
                "kv_bytes": max(self.cells[recipe][u]["kv_bytes"] for u in self.units),
                "noise": self.noise,
            }
            rows.append(row | self.figures(recipe) | {"against": self._against(recipe)})
        return rows

    def _against(self, recipe: str) -> dict[str, Any]:
        """Paired differences to the other recipes, this less the other, by their name."""
        found = {}
        for one, other in combinations(self.recipes, 2):
            if recipe not in (one, other):
                continue
            sign, name = (1, other) if recipe == one else (-1, one)
            parts = self.parts(one)
            parts[:, 0] = sign * (parts[:, 0] - self.parts(other)[:, 0])
            if parts[:, 1].any():
                found[name] = asdict(ratio(parts))
        return found

    def figures(self, recipe: str) -> Row:
        """The recipe's figures."""
        raise NotImplementedError

    def parts(self, recipe: str) -> NDArray[np.float64]:
        """(sum, count) ``[n, 2]`` of the main figure over what is independent of each other.

        In the same order, and with the same counts, for every recipe.
        """
        raise NotImplementedError


class _Streamed(_Kind):
    """KL in nats, top-1 agreement, perplexity."""

    @staticmethod
    def noise_of(
        contexts: Mapping[int, Mapping[str, list[Cell]]], repeats: list[Cell]
    ) -> float | None:
        """Mean KL of the dense cache cut into other steps, against itself."""
        return float(np.mean([np.mean(c["values"]["kl"]) for c in repeats])) if repeats else None

    def figures(self, recipe: str) -> Row:
        ours, full = self.cells[recipe], self.dense
        kl = np.concatenate([ours[u]["kl"] for u in self.units])
        nll = np.concatenate([ours[u]["nll"] for u in self.units])
        dense_nll = np.concatenate([full[u]["nll"] for u in self.units])
        agree = np.concatenate([ours[u]["agree"] for u in self.units])
        row: Row = {
            "tokens": len(kl),
            "kl": asdict(ratio(self.parts(recipe)).above(0.0)),
            "kl_median": float(np.median(kl)),
            "kl_p99": float(np.quantile(kl, 0.99)),
            "kl_max": float(kl.max()),
            "top1": float(agree.mean()),
            "ppl": perplexity(float(nll.mean())),
            "ppl_ratio": perplexity(float(nll.mean() - dense_nll.mean())),
            "dp_rms": float(np.sqrt(np.mean((np.exp(-nll) - np.exp(-dense_nll)) ** 2))),
        }
        if self.task == "drift":
            row["slope"] = asdict(self._slope(recipe))
            row["curve"] = np.mean([_means(ours[u]["kl"]) for u in self.units], axis=0).tolist()
        return row

    def parts(self, recipe: str) -> NDArray[np.float64]:
        return np.concatenate([blocks(self.cells[recipe][u]["kl"]) for u in self.units])

    def _slope(self, recipe: str) -> Estimate:
        """Nats a thousand steps."""
        parts = [_means(self.cells[recipe][u]["kl"]) for u in self.units]
        at = np.concatenate([np.arange(len(part)) * BLOCK / 1000 for part in parts])
        return slope(at, np.concatenate(parts))


class _Recalled(_Kind):
    """Hits, log-probabilities and what is left of the way from the floor to the dense cache."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._items = {
            recipe: {
                (unit, i): item
                for unit, values in cells.items()
                for i, item in enumerate(values["items"])
            }
            for recipe, cells in self.cells.items()
        }
        self._full = self._items.get(REFERENCE, {})
        by_rule = Task.registry[self.task]
        assert isinstance(by_rule, Recall)
        self._whole = by_rule.axis == "sample"  # a cell is all samples: they are alike
        together = defaultdict(list)
        for item in self._full.values():
            together[self._at(item)].append(item)
        self._able = {
            at: (
                float(np.mean([i["hit"] for i in items])) >= ACCURACY,
                float(np.mean([i["logp"] - i["floor"] for i in items])) >= MARGIN,
            )
            for at, items in together.items()
        }

    def _at(self, item: Mapping[str, Any]) -> float:
        return 0.0 if self._whole else float(item["at"])

    @staticmethod
    def noise_of(
        contexts: Mapping[int, Mapping[str, list[Cell]]], repeats: list[Cell]
    ) -> float | None:
        """The largest difference in nats of the dense cache cut into other steps."""
        first = {
            cell["unit"]: cell["values"]["items"]
            for cells in contexts.values()
            for cell in cells.get(REFERENCE, ())
        }
        apart = [
            abs(a["logp"] - b["logp"])
            for cell in repeats
            if cell["unit"] in first
            for a, b in zip(cell["values"]["items"], first[cell["unit"]], strict=True)
        ]
        return max(apart) if apart else None

    def figures(self, recipe: str) -> Row:
        ours = self._items[recipe]
        hits = [i["hit"] for i in ours.values() if self._able[self._at(i)][0]]
        scored = [(i, self._full[key]) for key, i in ours.items() if self._able[self._at(i)][1]]
        kept = self._kept(recipe)
        return {
            "cells": len(self._able),
            "cells_hit": sum(able for able, _ in self._able.values()),
            "cells_scored": sum(clear for _, clear in self._able.values()),
            "asked": len(hits),
            "hits": float(np.sum(hits)),
            "logp": float(np.mean([i["logp"] for i, _ in scored])) if scored else None,
            "retention": asdict(ratio(kept, LEAST)) if scored else None,
            "map": self._map(ours),
        }

    def _map(self, ours: Mapping[tuple[str, int], Any]) -> list[Row]:
        together = defaultdict(list)
        for key, item in ours.items():
            together[self._at(item)].append((item, self._full[key]))
        cells = []
        for at in sorted(together):
            pairs, (able, clear) = together[at], self._able[at]
            cells.append(
                {
                    "at": at,
                    "hits": float(np.mean([i["hit"] for i, _ in pairs])) if able else None,
                    "retention": _retention(pairs) if clear else None,
                    "logp": float(np.mean([i["logp"] for i, _ in pairs])),
                    "samples": len(pairs),
                }
            )
        return cells

    def parts(self, recipe: str) -> NDArray[np.float64]:
        """Answers of one text depend on each other: a part is a unit."""
        return self._by_unit(recipe, lambda item, full: (item["logp"], 1.0))

    def _kept(self, recipe: str) -> NDArray[np.float64]:
        """(what is left, what there was) above the floor, in nats, of every unit."""
        return self._by_unit(
            recipe,
            lambda item, full: (item["logp"] - full["floor"], full["logp"] - full["floor"]),
        )

    def _by_unit(
        self,
        recipe: str,
        pair: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[float, float]],
    ) -> NDArray[np.float64]:
        sums = {unit: np.zeros(2) for unit in self.units}
        for key, item in self._items[recipe].items():
            if self._able[self._at(item)][1]:
                sums[key[0]] += pair(item, self._full[key])
        return np.asarray(list(sums.values()))


def _means(values: Sequence[float]) -> NDArray[np.float64]:
    """Means of whole blocks: steps of the same length each."""
    parts = blocks(values)
    whole = parts[parts[:, 1] == BLOCK] if len(parts) > 1 else parts
    return whole[:, 0] / whole[:, 1]


def _retention(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> float:
    """1: as likely as with the dense cache; 0: as to one who has not read it."""
    left = sum(item["logp"] - full["floor"] for item, full in pairs)
    return float(left / sum(full["logp"] - full["floor"] for _, full in pairs))
