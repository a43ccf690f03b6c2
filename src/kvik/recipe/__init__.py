"""The recipe language: parse, print, resolve, register."""

from kvik.recipe.amount import Amount
from kvik.recipe.codec import Codec, Pair, Plane
from kvik.recipe.plan import Group, LayerPlan, Plan
from kvik.recipe.recipe import Recipe
from kvik.recipe.retention import Evicting, Kept, Positional, Retention
from kvik.recipe.scope import Scope
from kvik.recipe.stage import Slot, Stage, arg

__all__ = [
    "Amount",
    "Codec",
    "Evicting",
    "Group",
    "Kept",
    "LayerPlan",
    "Pair",
    "Plan",
    "Plane",
    "Positional",
    "Recipe",
    "Retention",
    "Scope",
    "Slot",
    "Stage",
    "arg",
]
