"""``kvik run``: one answer, or a chat at the terminal, with the cache that a recipe describes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from kvik.commands.answer import Answer, RunOptions, show_figures, stream, warn
from kvik.commands.progress import fetch_progress
from kvik.commands.prompt import read_prompt
from kvik.engine.conversation import Spell, chat_spelling, plain_spelling
from kvik.errors import KvikError, RecipeError
from kvik.recipe import Recipe

if TYPE_CHECKING:
    from kvik.engine.sampler import Sampling
    from kvik.models import Model


def run_model(options: RunOptions) -> None:
    """Answer a prompt, or chat; raises KvikError in one line where that cannot be."""
    from kvik.models import sources

    # All that can be said without torch, whose import takes seconds, is said before it.
    recipe = Recipe.parse(options.recipe)
    path = sources.local(options.model)
    if path is not None:
        check(recipe, path, options)
    if not all(options.stop):
        raise KvikError("--stop is empty: give the text to stop before, or leave it out")
    prompt = read_prompt(options.prompt, options.file)
    if prompt is None and options.as_json:
        raise KvikError("--json needs a prompt: a chat is for people")
    from kvik.engine.sampler import Sampling

    sampling = Sampling(
        options.temperature,
        options.top_k,
        options.top_p,
        options.min_p,
        options.repetition_penalty,
        options.seed,
    )
    model = load(recipe, options)
    spell = spelling(model, options)
    if prompt is None:
        from kvik.commands.chat import chat

        chat(model, spell, options, sampling)
    else:
        answer_once(model, spell, prompt, options, sampling)


def load(recipe: Recipe, options: RunOptions) -> Model:
    """The model; the recipe is checked against its description before the weights are read."""
    from kvik.models import load_model, sources

    with fetch_progress(Console(stderr=True)) as report:
        path = sources.resolve(options.model, report)
    check(recipe, path, options)
    return load_model(path)


def check(recipe: Recipe, path: Path, options: RunOptions) -> None:
    """RecipeError where the recipe cannot work with the model at ``path``."""
    from kvik.spec import load_spec

    try:
        recipe.resolve(load_spec(path))
    except RecipeError as error:
        raise RecipeError(*(f"{options.recipe!r}: {reason}" for reason in error.reasons)) from None


def spelling(model: Model, options: RunOptions) -> Spell:
    """How messages become ids: the model's chat template, or plain text."""
    spell = None if options.raw else chat_spelling(model.tokenizer)
    if spell is None and options.system:
        raise KvikError("--system needs a chat template: leave it out, or put it in the prompt")
    return spell or plain_spelling(model.tokenizer)


def answer_once(
    model: Model, spell: Spell, prompt: str, options: RunOptions, sampling: Sampling
) -> None:
    """One prompt, one answer; the text on standard output, the figures on standard error."""
    from kvik.engine.session import Session

    opening = [{"role": "system", "content": options.system}] if options.system else []
    ids = spell([*opening, {"role": "user", "content": prompt}])
    room = len(ids) + options.max_new
    if room > model.spec.context:
        warn(
            f"{len(ids):,} prompt and {options.max_new:,} new tokens are beyond the "
            f"{model.spec.context:,} that {options.model} was trained on"
        )
    session = Session(model, options.recipe, max_tokens=room)
    answer = Answer(len(ids))
    try:
        for text in stream(session, ids, options, sampling, answer):
            if not options.as_json:
                click.echo(text, nl=False)
    finally:
        if not options.as_json:
            click.echo()
            show_figures(answer, session)
    if options.as_json:
        facts = {"model": options.model, "recipe": str(session.recipe), **answer.facts(session)}
        click.echo(json.dumps(facts, indent=2))
