"""What a configuration says and transformers' model of the family does not compute, refused.

The planner is lenient: it reads a field under any of its names and for any family. A decoder that
did so would answer differently from the model as its authors ran it, and nobody would see.
"""

from __future__ import annotations

from kvik.spec.fields import Fields


def refuse_unmasked(fields: Fields) -> None:
    """Tokens see only those before them; transformers takes a null for false here."""
    if fields.unless_null("is_causal", True).get("is_causal") is not True:
        raise fields.wrong("is_causal", "true or absent")
