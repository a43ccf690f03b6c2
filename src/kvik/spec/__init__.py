"""What a model is: its layers, sizes and rotary embeddings, read without torch."""

from kvik.spec.load import load_spec
from kvik.spec.model import LayerSpec, ModelSpec, Rope

__all__ = ["LayerSpec", "ModelSpec", "Rope", "load_spec"]
