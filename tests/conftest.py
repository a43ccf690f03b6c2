"""Order and settings shared by all tests."""

from __future__ import annotations

import os

import pytest

# Before torch or numpy start their pools: two threads are what every machine that runs us has.
os.environ.setdefault("OMP_NUM_THREADS", "2")
# No test talks to a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the fast tests first, so that a mistake shows early."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
