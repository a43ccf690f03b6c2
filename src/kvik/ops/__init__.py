"""Operations on cached K and V. ``reference`` is the definition; the native library must agree."""

from kvik.ops.dispatch import attend, mass
from kvik.ops.reference import Keys, Scoring, merge
from kvik.ops.rope import angles, exact_angles, rotate

__all__ = ["Keys", "Scoring", "angles", "attend", "exact_angles", "mass", "merge", "rotate"]
