"""kvik plans, runs and measures KV-cache recipes for decoder language models."""

__version__ = "0.1.0"
