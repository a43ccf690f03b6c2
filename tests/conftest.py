"""Order, settings and the tiny model, shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before torch or numpy start their pools: two threads are what every machine that runs us has,
# and processes that share them get one each.
os.environ["OMP_NUM_THREADS"] = "1" if "PYTEST_XDIST_WORKER" in os.environ else "2"
# No test talks to a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# The same examples in every run, and no clock: a busy machine is not a fault.
settings.register_profile(
    "kvik",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("kvik")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the fast tests first, so that a mistake shows early."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random model with a chat template."""
    from tests.tiny import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without a chat template, and with a context of 256 tokens."""
    from tests.tiny import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("models") / "base", context=256, chat=False)
