"""Operations on cached K and V. ``reference`` is the definition; other backends must agree."""

from kvik.ops.reference import Keys, Scoring, attend, mass, merge
from kvik.ops.rope import angles, rotate

__all__ = ["Keys", "Scoring", "angles", "attend", "mass", "merge", "rotate"]
