"""The laws of the cache over stacks of stages, with tracers for the seams."""

from __future__ import annotations

import pytest
from tests import tracers
from tests.laws.broken import BROKEN, Remembers, SwappedNibbles

from kvik.errors import RecipeError
from kvik.recipe import Recipe
from kvik.testing import ConformanceError, check_codec, check_stack, models, stacks

assert tracers.PerChannel.examples  # importing them registered them
MODELS = {"plain": models.plain, "grouped": models.grouped, "latent": models.latent}
MODELS["stateful"] = models.stateful


def run(recipe: str, model: str) -> bool:
    """Whether the stack is legal; a legal one keeps the laws or the test fails."""
    try:
        check_stack(recipe, MODELS[model]())
    except RecipeError as error:
        refusal = error
    else:
        return True
    assert all(len(reason) > 20 for reason in refusal.reasons)
    return False


@pytest.mark.parametrize("recipe", stacks.alone())
def test_every_stage_alone_on_grouped_and_sliding_layers(recipe: str) -> None:
    """Every example of every stage is legal on an ordinary model, and keeps the laws."""
    assert run(recipe, "grouped")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["latent", "stateful"])
@pytest.mark.parametrize("recipe", stacks.alone())
def test_every_stage_alone_on_other_layers(recipe: str, model: str) -> None:
    """Latent rows, shared caches and mutable states change nothing."""
    run(recipe, model)


def legal(recipe: str) -> bool:
    try:
        Recipe.parse(recipe).resolve(models.grouped().spec)
    except RecipeError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("recipe", stacks.pairwise_stages(legal))
def test_every_pair_of_stages(recipe: str) -> None:
    """A covering array of stacks; the triples below have all parameters."""
    run(recipe, "grouped")


@pytest.mark.soak
@pytest.mark.parametrize("recipe", stacks.pairwise())
def test_every_pair_of_choices(recipe: str) -> None:
    """The same for every pair of parameters that a stage gives as an example."""
    run(recipe, "grouped")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(200))
def test_random_triples(number: int) -> None:
    """200 seeded stacks over all models."""
    recipe = stacks.triples(200)[number]
    run(recipe, list(MODELS)[number % len(MODELS)])


@pytest.mark.soak
def test_the_full_product() -> None:
    """Every stack there is, on every model: hours."""
    for recipe in stacks.everything():
        for model in MODELS:
            run(recipe, model)


def test_most_pairs_are_legal() -> None:
    """The covering arrays are worth running: most of them is not refused."""
    for everything, share in ((stacks.pairwise(), 0.6), (stacks.pairwise_stages(legal), 0.6)):
        assert sum(map(legal, everything)) > share * len(everything)


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_the_suite_sees_planted_faults(name: str) -> None:
    """Negative controls: each broken variant fails, and says what is broken."""
    recipe, make, words = BROKEN[name]
    with pytest.raises(ConformanceError, match=words):
        check_stack(recipe, models.plain(), make)


@pytest.mark.parametrize("text", stacks.examples(stacks.Slot.CODEC))
def test_codecs_keep_their_contract(text: str) -> None:
    """Bytes as declared, groups independent, hard values finite."""
    codec = Recipe.parse(text).stages[0][0]
    if text != "none":
        check_codec(codec)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", [SwappedNibbles(4), Remembers(8)])
def test_the_codec_suite_sees_planted_faults(codec: SwappedNibbles) -> None:
    """Swapped nibbles and a codec that remembers fail on their own, too."""
    with pytest.raises(ConformanceError):
        check_codec(codec)
