"""Beams through the cache: transformers' hypotheses, and what the beams share in the pool."""

from __future__ import annotations

import itertools
import pydoc_data.topics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests import tracers

from kvik.cache import KVCache, PagePool, Sequence
from kvik.engine.beam import BeamParams, BeamSearch, Choice, Hypothesis
from kvik.engine.engine import Engine
from kvik.engine.sharing import Shared, shared_bytes
from kvik.models import Model, load_model
from kvik.models.weights import load_weights
from kvik.recipe import Recipe
from kvik.testing import models

assert tracers.PerChannel.names  # importing them registered them

PROMPT = [5, 3, 80, 11, 42, 7, 7, 19, 60, 2, 33]


@dataclass
class Driver:
    """Drives a search through forks of one cache; ``afresh`` feeds every beam from the start."""

    model: Model
    recipe: str
    afresh: bool = False
    shared: list[Shared] = field(default_factory=list)
    pages: list[tuple[list[tuple[int, ...]], int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan = Recipe.parse(self.recipe).resolve(self.model.spec)
        self.cache = KVCache(plan, PagePool(plan.page_bytes, 64 << 20, poison=True))

    @property
    def used(self) -> int:
        return self.cache.pool.stats().used

    def feed(self, sequences: list[Sequence], parts: list[list[int]]) -> torch.Tensor:
        """The last row of logits of each sequence."""
        counts = torch.tensor([len(part) for part in parts])
        self.cache.plan(sequences, counts.tolist())
        ids = torch.tensor([token for part in parts for token in part])
        rows = self.model.forward(ids, self.cache.positions, self.cache, counts.cumsum(0) - 1)
        self.cache.commit()
        return rows

    def follow(self, live: list[Sequence], choices: list[Choice]) -> list[Sequence]:
        """The sequences of the choices: forks first, then the parents that nobody chose go."""
        kept: set[int] = set()
        after = []
        for choice in choices:
            parent = live[choice.parent]
            after.append(self.cache.fork(parent) if choice.parent in kept else parent)
            kept.add(choice.parent)
        for at, sequence in enumerate(live):
            if at not in kept:
                self.cache.free(sequence)
        return after

    def run(
        self, prompt: list[int], params: BeamParams, eos_ids: set[int], max_new: int
    ) -> list[Hypothesis]:
        search = BeamSearch(params, eos_ids=eos_ids, max_new=max_new)
        live = [self.cache.create()]
        choices = search.first(self.feed(live, [prompt])[0])
        while choices:
            if self.afresh:
                for sequence in live:
                    self.cache.free(sequence)
                live = [self.cache.create() for _ in choices]
                parts = [prompt + list(beam.tokens) for beam in search.live]
            else:
                before = self.used
                live = self.follow(live, choices)
                assert self.used <= before
                parts = [[choice.token] for choice in choices]
            rows = self.feed(live, parts)
            self.pages.append(([(*prompt, *beam.tokens) for beam in search.live], self.used))
            self.shared.append(shared_bytes(self.cache, live))
            choices = search.advance(rows)
        for sequence in live:
            self.cache.free(sequence)
        assert self.used == 0
        return search.result()


# Transformers


def theirs(
    model: Any, prompt: list[int], params: BeamParams, eos_ids: set[int], max_new: int
) -> list[tuple[tuple[int, ...], float]]:
    """transformers' new tokens, up to the end token, and scores."""
    end = max(eos_ids, default=0)
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        num_beams=params.width,
        num_return_sequences=params.n,
        max_new_tokens=max_new,
        eos_token_id=sorted(eos_ids) or None,
        pad_token_id=end,
        return_dict_in_generate=True,
        output_scores=True,
        **{"length_penalty": params.length_penalty, "early_stopping": params.early_stopping}
        if params.width > 1
        else {},
    )
    found = []
    for row in out.sequences[:, len(prompt) :].tolist():
        stop = next((i + 1 for i, token in enumerate(row) if token in eos_ids), len(row))
        found.append(tuple(row[:stop]))
    if params.width == 1:
        picked = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
        length = len(found[0])
        return [(found[0], float(picked.sum()) / length**params.length_penalty)]
    return list(zip(found, out.sequences_scores.tolist(), strict=True))


def agree(got: list[Hypothesis], wanted: list[tuple[tuple[int, ...], float]]) -> None:
    assert [h.tokens for h in got] == [tokens for tokens, _ in wanted]
    assert [h.score for h in got] == pytest.approx([score for _, score in wanted], abs=1e-4)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Any]:
    pytest.importorskip("transformers")
    from tests.models.test_parity import ours, tiny

    model = tiny("llama", {})
    return ours(model, tmp_path_factory.mktemp("llama")), model


@pytest.fixture(scope="module")
def frequent(pair: tuple[Model, Any]) -> dict[int, list[int]]:
    """For each width the three tokens that come most often where nothing ends a text."""
    found = {}
    for width in (1, 2, 4):
        free = Driver(pair[0], "fp32").run(PROMPT, BeamParams(width, n=width), set(), 12)
        tokens = Counter(token for h in free for token in h.tokens)
        found[width] = [token for token, _ in tokens.most_common(3)]
    return found


RULES = [*itertools.product([0.5, 1.0, 2.0], [True, False, "never"]), (-1.0, False)]


@pytest.mark.parametrize(("penalty", "early"), RULES)
@pytest.mark.parametrize("width", [1, 2, 4])
def test_hypotheses_are_transformers(
    pair: tuple[Model, Any], frequent: dict[int, list[int]], width: int, penalty: float, early: Any
) -> None:
    model, reference = pair
    params = BeamParams(width, n=width, length_penalty=penalty, early_stopping=early)
    ends = frequent[width]
    # Where nothing ends a text early_stopping plays no part, so that runs once.
    for eos_ids in ({ends[1]}, set(ends), *([set()] if early is True else [])):
        got = Driver(model, "fp32").run(PROMPT, params, eos_ids, 12)
        agree(got, theirs(reference, PROMPT, params, eos_ids, 12))


def test_the_settings_above_make_a_difference(
    pair: tuple[Model, Any], frequent: dict[int, list[int]]
) -> None:
    model, reference = pair
    eos_ids = {frequent[4][1]}
    found = {}
    for early, penalty in ((True, 1.0), (False, 1.0), ("never", 1.0), (False, 2.0)):
        params = BeamParams(4, n=4, length_penalty=penalty, early_stopping=early)
        found[early, penalty] = Driver(model, "fp32").run(PROMPT, params, eos_ids, 12)
    texts = {tuple(h.tokens for h in one) for one in found.values()}
    assert len(texts) == len(found)
    assert {h.finish for one in found.values() for h in one} == {"eos", "length"}
    # Fewer hypotheses are the best of them.
    few = BeamParams(4, n=2, early_stopping=True)
    got = Driver(model, "fp32").run(PROMPT, few, eos_ids, 12)
    assert got == found[True, 1.0][:2]
    agree(got, theirs(reference, PROMPT, few, eos_ids, 12))


@pytest.mark.slow
@pytest.mark.model
def test_hypotheses_of_a_real_model_are_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    from tests.models.test_parity import REAL, in_their_names

    name = "smollm2-135m"
    model = load_model(name)
    state = in_their_names(load_weights(model.path, model.spec), gemma=False)
    reference = transformers.LlamaForCausalLM.from_pretrained(
        None, config=REAL[name](), state_dict=state, dtype=torch.float32
    ).eval()
    prompt = model.tokenizer.encode(pydoc_data.topics.topics["assignment"])[:90]
    params = BeamParams(4, n=4)
    engine = Engine(model, "fp32", memory="256MiB")
    found = engine.generate([prompt], max_new=24, beams=params)[0]
    got = [Hypothesis(tuple(s.tokens), s.score or 0.0, "length") for s in found.samples]
    agree(got, theirs(reference, prompt, params, set(model.eos_ids), 24))
    assert found.shared is not None
    assert found.shared.saved_fraction > 0.4


# Pages


@pytest.mark.parametrize("size", [1, 4, 16])
def test_beams_copy_partly_filled_pages_only(size: int) -> None:
    driver = Driver(models.plain(), f"fp32+page:{size}")
    (group,) = driver.cache.resolved.groups
    driver.run(PROMPT, BeamParams(4), set(), 40)
    assert len(driver.pages) == 39
    for texts, used in driver.pages:
        # A page is its beam's alone or holds a past that beams have in common.
        length = len(texts[0])
        ends = {(t[:end]) for t in texts for end in (*range(size, length, size), length)}
        assert used == len(ends) * group.main.nbytes


RECIPES = ["fp32+page:4", "int4+page:8", "perchannel:4,residual=7,raw+page:8", "heavy:9,every=16"]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("make", [models.grouped, models.plain], ids=lambda make: make.__name__)
def test_forked_beams_are_beams_fed_afresh(make: Any, recipe: str) -> None:
    model, params = make(), BeamParams(3, n=3, early_stopping="never")
    forked = Driver(model, recipe).run(PROMPT, params, {9, 70}, 18)
    afresh = Driver(model, recipe, afresh=True).run(PROMPT, params, {9, 70}, 18)
    agree(forked, [(h.tokens, h.score) for h in afresh])


def test_what_sharing_saves_is_counted() -> None:
    driver = Driver(models.plain(), "fp32+page:4")
    cache = driver.cache
    (group,) = cache.resolved.groups
    assert shared_bytes(cache, []) == Shared(0, 0)
    assert shared_bytes(cache, []).saved_fraction == 0
    one = cache.create()
    driver.feed([one], [PROMPT])  # 11 tokens: two full pages and one of three tokens
    two = cache.fork(one)
    table = one.state.table_bytes
    page = group.main.nbytes
    assert shared_bytes(cache, [one]) == Shared(3 * page + table, 3 * page + table)
    assert shared_bytes(cache, [one, two]) == Shared(6 * page + 2 * table, 3 * page + 2 * table)
    driver.feed([one, two], [[1], [2]])
    after = shared_bytes(cache, [one, two])
    assert after == Shared(6 * page + 2 * table, 4 * page + 2 * table)
    assert after.saved_fraction == pytest.approx(2 * page / (6 * page + 2 * table))
    assert after.shared - 2 * table == driver.used


def test_long_beams_share_their_prompt() -> None:
    driver = Driver(models.plain(), "fp32+page:4")
    driver.run(PROMPT * 20, BeamParams(4), set(), 30)
    assert min(s.saved_fraction for s in driver.shared) > 0.6
