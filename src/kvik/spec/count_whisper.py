"""Parameters of Whisper, encoder and decoder (arXiv 2212.04356)."""

from __future__ import annotations

from kvik.spec.fields import Fields
from kvik.spec.model import ModelSpec
from kvik.spec.params import Params


def whisper(fields: Fields, spec: ModelSpec) -> Params:
    """Both parts: every token of text goes through the decoder, the encoder runs once."""
    hidden = spec.hidden
    # q, v and output have biases, k has none; a norm is a scale and a shift.
    attention, norm = 4 * hidden * hidden + 3 * hidden, 2 * hidden
    decoder = len(spec.layers) * (2 * attention + _network(hidden, spec.ffn) + 3 * norm) + norm
    positions = spec.context * hidden
    table = spec.vocab * hidden
    width = fields.integer("encoder_ffn_dim")
    encoder = fields.integer("encoder_layers") * (attention + _network(hidden, width) + 2 * norm)
    encoder += norm + fields.integer("max_source_positions") * hidden
    encoder += 3 * hidden * (fields.integer("num_mel_bins") + hidden) + 2 * hidden
    text = decoder + positions + table
    return Params(
        total=text + encoder,
        active=text - positions,
        embedding=table,
        output=0,
        looked_up=positions,
    )


def _network(hidden: int, width: int) -> int:
    return 2 * hidden * width + width + hidden
