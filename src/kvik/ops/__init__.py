"""Operations on cached K and V. ``reference`` is the definition; the native library must agree."""

from kvik.ops.dispatch import attend, mass
from kvik.ops.reference import Keys, Scoring, merge
from kvik.ops.rope import angles, angles_at, rotate

__all__ = ["Keys", "Scoring", "angles", "angles_at", "attend", "mass", "merge", "rotate"]
