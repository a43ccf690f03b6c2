"""The position law from request to answer, over the covering array of stacks."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests import tracers

from kvik.engine.engine import Engine
from kvik.engine.prefix import Hit, PrefixCache
from kvik.errors import RecipeError
from kvik.recipe import Recipe, Slot
from kvik.testing import ConformanceError, check_engine, models, stacks
from kvik.testing.requests import check_long_prompt

assert tracers.PerChannel.examples  # importing them registered them
MODELS = {"plain": models.plain, "grouped": models.grouped, "latent": models.latent}
MODELS["stateful"] = models.stateful
QUICK = ["fp16", "int8/int4+page:7", "int8+sinks:2+window:18", "perchannel", "heavy:20", "none"]


@pytest.mark.parametrize("recipe", QUICK)
def test_however_a_request_is_served_its_answer_is_the_same(recipe: str) -> None:
    """Alone, batched, in chunks, preempted both ways, forked, from a stored prefix, restored."""
    check_engine(recipe, models.grouped())


@pytest.mark.parametrize("recipe", ["int8/int4+page:7", "int8+sinks:2+window:18"])
def test_a_prompt_longer_than_a_step_of_a_thousand_tokens(recipe: str) -> None:
    check_long_prompt(recipe, models.grouped())


SPECS = {name: make().spec for name, make in MODELS.items()}


def takers(recipe: str) -> list[str]:
    """The models that take a stack; test_stacks looks at the reasons of the others."""
    found = []
    for name, spec in SPECS.items():
        with contextlib.suppress(RecipeError):
            Recipe.parse(recipe).resolve(spec)
            found.append(name)
    return found


def with_models(recipes: list[str]) -> list[tuple[str | None, str]]:
    """Every stack with one of the models that take it, the one that has fewest so far."""
    found: list[tuple[str | None, str]] = []
    counts = dict.fromkeys(SPECS, 0)
    for recipe in recipes:
        chosen = min(takers(recipe), key=counts.__getitem__, default=None)
        found.append((chosen, recipe))
        if chosen is not None:
            counts[chosen] += 1
    return found


STAGES = with_models(stacks.pairwise_stages(lambda recipe: bool(takers(recipe))))
CHOICES = with_models(stacks.pairwise())


@pytest.mark.slow
@pytest.mark.parametrize(("model", "recipe"), [pair for pair in STAGES if pair[0]])
def test_every_pair_of_stages(model: str, recipe: str) -> None:
    """A covering array of stacks, over all the models."""
    check_engine(recipe, MODELS[model](), thorough=False)


@pytest.mark.soak
@pytest.mark.parametrize(("model", "recipe"), [pair for pair in CHOICES if pair[0]])
def test_every_pair_of_choices(model: str, recipe: str) -> None:
    """The same for every pair of parameters that a stage gives as an example."""
    check_engine(recipe, MODELS[model](), thorough=False)


@pytest.mark.parametrize(("pairs", "share"), [(STAGES, 3), (CHOICES, 12)])
def test_most_pairs_are_run(pairs: list[tuple[str | None, str]], share: int) -> None:
    """What no model takes does not hollow out the tests above, and every model has its share."""
    counts = Counter(name for name, _ in pairs)
    assert counts[None] <= 0.3 * len(pairs)
    assert all(counts[name] >= share for name in MODELS)


def test_every_example_has_its_turn() -> None:
    """The covering array of stages is of all their examples, not only the first."""
    run = "+".join(recipe for model, recipe in STAGES if model)
    words = set(run.replace("/", "+").split("+"))
    for text in (*stacks.examples(Slot.CODEC), *stacks.examples(Slot.RETENTION)):
        assert text == "none" or words.issuperset(text.split("+")), text


class HitsTooFar(PrefixCache):
    """Claims one token more of a stored prefix than there is."""

    def take(self, hit: Hit) -> Any:
        sequence = super().take(hit)
        if hit.length > 40:
            state = sequence.state
            sequence.state = type(state)(state.length + 1, *list(state)[1:])
        return sequence


class TakesAnother(PrefixCache):
    """Gives what is stored of another text."""

    def take(self, hit: Hit) -> Any:
        for entry in self.entries():
            ids = self.text_of(entry).ids[: hit.length]
            if hit.length and len(ids) == hit.length and ids != hit.text.ids[: hit.length]:
                return self.cache.restore(self.cache.cut_state(self.state_of(entry), hit.length))
        return super().take(hit)


BROKEN: dict[str, Callable[[Engine], None]] = {}


def broken(make: Callable[[Engine], None]) -> Callable[[Engine], None]:
    BROKEN[make.__name__] = make
    return make


@broken
def positions_of_another_sample(engine: Engine) -> None:
    """Seeds that depend on who else is in the batch."""
    add = engine._add

    def shifted(request: Any, options: dict[str, Any]) -> Any:
        job = add(request, options)
        for branch in job.branches:
            branch.index += len(engine._jobs) - 1
        return job

    engine._add = shifted  # type: ignore[method-assign]


@broken
def a_resumed_request_loses_a_token(engine: Engine) -> None:
    preempt = engine.scheduler.preempt

    def forgetful(job: Any) -> None:
        preempt(job)
        for branch in job.live:
            if branch.known > len(job.request.prompt) + 1:
                branch.text.ids[-1] = (branch.text.ids[-1] + 1) % 96

    engine.scheduler.preempt = forgetful  # type: ignore[method-assign]


@broken
def prefixes_of_others(engine: Engine) -> None:
    if engine.prefixes is not None:
        engine.prefixes.__class__ = TakesAnother


@broken
def one_position_too_far(engine: Engine) -> None:
    if engine.prefixes is not None:
        engine.prefixes.__class__ = HitsTooFar


@broken
def pages_are_never_given_back(engine: Engine) -> None:
    engine.memory.release = lambda branch: setattr(branch, "sequence", None)  # type: ignore[method-assign]


@pytest.mark.parametrize("fault", sorted(BROKEN))
def test_the_suite_sees_planted_faults(fault: str) -> None:
    """Negative controls: each broken engine fails."""

    def make(*args: Any, **options: Any) -> Engine:
        engine = Engine(*args, **options)
        BROKEN[fault](engine)
        return engine

    with pytest.raises((ConformanceError, ValueError, RuntimeError, IndexError)):
        check_engine("fp16", models.plain(), make)
