"""Launch commands of other engines for a recipe: one file for each."""

from kvik.export.base import Exported, export
from kvik.export.targets import TARGETS

__all__ = ["TARGETS", "Exported", "export"]
