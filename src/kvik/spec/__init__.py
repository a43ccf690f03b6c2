"""What a model is: its layers, sizes and rotary embeddings, read without torch."""

from kvik.spec.load import load_spec
from kvik.spec.model import Experts, Extra, LayerSpec, ModelSpec, Rope, StatePart
from kvik.spec.params import Params

__all__ = ["Experts", "Extra", "LayerSpec", "ModelSpec", "Params", "Rope", "StatePart", "load_spec"]
