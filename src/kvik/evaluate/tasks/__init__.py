"""The tasks of ``kvik eval``; importing this package fills ``Task.registry``."""

from kvik.evaluate.tasks import drift, induction, middle, needle, ruler, stream
from kvik.evaluate.tasks.base import REFERENCE, Ask, Material, Subject, Task, Unit, find

__all__ = [
    "REFERENCE",
    "Ask",
    "Material",
    "Subject",
    "Task",
    "Unit",
    "drift",
    "find",
    "induction",
    "middle",
    "needle",
    "ruler",
    "stream",
]
