"""The two small real models and text for them, loaded once."""

from __future__ import annotations

import pytest

from kvik.evaluate.text import library_text
from kvik.models import Model, load_model


@pytest.fixture(scope="session")
def smollm() -> Model:
    return load_model("smollm2-135m")


@pytest.fixture(scope="session")
def gemma() -> Model:
    return load_model("gemma3-270m")


@pytest.fixture(scope="session")
def text(smollm: Model) -> list[int]:
    """Token ids of the library's English text."""
    return smollm.tokenizer.encode(library_text()[:60_000])
