"""Errors a user can act on. The command line prints their text on one line and exits with 2."""


class KvikError(Exception):
    """Base of every error that kvik raises on purpose; its text says what to do next."""


class SpecError(KvikError):
    """A model description that cannot be read, or that kvik does not support."""


class ModelError(KvikError):
    """A model that cannot be found, fetched, verified or loaded."""


class RecipeError(KvikError):
    """A recipe that cannot be parsed, or a stack that cannot work; ``reasons`` lists why."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class CapacityError(KvikError):
    """A cache that does not fit where it was asked to go."""
