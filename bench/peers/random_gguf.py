"""A GGUF file of random weights in the shape of a larger model, for timing.

    python bench/peers/random_gguf.py llama-1b out.gguf

Nothing can be said in it, but every system reads and multiplies as much as in the real model: the
layout, the types of the tensors and the size of the vocabulary are those of the usual Q4_0 file.
The file is written tensor by tensor, so that it takes little memory, and the same seed gives the
same bytes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

ROWS = 512  # of a matrix, made at a time


@dataclass(frozen=True)
class Shape:
    """What decides how much is read and multiplied; ``tied``: the embedding is the output too."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    tied: bool
    rope_base: float = 500_000.0


SHAPES = {
    "llama-1b": Shape(16, 2048, 8192, 32, 8, 64, 128_256, 131_072, tied=True),
    "llama-8b": Shape(32, 4096, 14_336, 32, 8, 128, 128_256, 131_072, tied=False),
    "tiny": Shape(2, 256, 512, 8, 2, 32, 512, 2048, tied=True),
}


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...], Type]]:
    """Every tensor's name, its shape [out, in] and its type."""
    # llama.cpp's Q4_0 files keep the output matrix, and so a tied embedding, in Q6_K.
    yield "token_embd.weight", (shape.vocab, shape.hidden), Type.Q6_K if shape.tied else Type.Q4_0
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for i in range(shape.layers):
        for name, size in (
            ("attn_q", (wide, shape.hidden)),
            ("attn_k", (narrow, shape.hidden)),
            ("attn_v", (narrow, shape.hidden)),
            ("attn_output", (shape.hidden, wide)),
            ("ffn_gate", (shape.ffn, shape.hidden)),
            ("ffn_up", (shape.ffn, shape.hidden)),
            ("ffn_down", (shape.hidden, shape.ffn)),
        ):
            yield f"blk.{i}.{name}.weight", size, Type.Q4_0
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{i}.{name}.weight", (shape.hidden,), Type.F32
    yield "output_norm.weight", (shape.hidden,), Type.F32
    if not shape.tied:
        yield "output.weight", (shape.vocab, shape.hidden), Type.Q6_K


def random_rows(
    draw: np.random.Generator, rows: int, columns: int, kind: Type, deviation: float
) -> NDArray[np.uint8]:
    """``rows`` encoded rows [rows, bytes]: uniform codes, one scale for every block.

    4-bit codes are 1 to 15, so that their mean, less the 8 that is taken off, is 0: a mean would
    grow from layer to layer. Their deviation is 4.32, that of 6-bit codes 18.47, and the scale
    makes it what is asked.
    """
    count = rows * columns

    def scales(blocks: int, value: float) -> NDArray[np.uint8]:
        return np.full(blocks, np.float16(value)).view(np.uint8).reshape(blocks, 2)

    if kind is Type.Q4_0:  # a scale and 32 codes
        low, high = draw.integers(1, 16, (2, count // 32, 16), np.uint8)
        codes = low | high << 4
        return np.concatenate([scales(count // 32, deviation / 4.32), codes], 1).reshape(rows, -1)
    # Q6_K: 256 codes of 6 bits, 16 scales of a byte (all 64 here), and one scale for them.
    codes = draw.integers(0, 256, (count // 256, 192), np.uint8)
    inner = np.full((count // 256, 16), 64, np.uint8)
    outer = scales(count // 256, deviation / (18.47 * 64))
    return np.concatenate([codes, inner, outer], 1).reshape(rows, -1)


def write(path: Path, shape: Shape, seed: int = 0) -> None:
    """Writes the file; the same shape and seed give the same bytes."""
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, shape)
    made = list(tensors(shape))
    for name, size, kind in made:
        if kind is Type.F32:
            writer.add_tensor_info(name, size, np.dtype(np.float32), 4 * size[0])
            continue
        width = gguf.quant_shape_to_byte_shape(size, kind)
        count = int(np.prod(width))
        writer.add_tensor_info(name, width, np.dtype(np.uint8), count, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    draw = np.random.Generator(np.random.PCG64(seed))
    with path.open("ab") as file:
        _pad(file)
        for _, size, kind in made:
            if kind is Type.F32:
                file.write(np.ones(size, np.float32).tobytes())
            else:
                # Scaled by what they add up, so that every activation stays near 1.
                deviation = size[1] ** -0.5
                for low in range(0, size[0], ROWS):
                    rows = min(ROWS, size[0] - low)
                    file.write(random_rows(draw, rows, size[1], kind, deviation).tobytes())
            _pad(file)


def _pad(file: object) -> None:
    """Zeros to the file's alignment, as before and after every tensor."""
    file.write(bytes(-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))  # type: ignore[attr-defined]


def _describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Metadata, and a tokenizer of single bytes, two special tokens and names for the rest."""
    writer.add_name("random weights")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    names = _byte_names()
    special = ["<|begin|>", "<|end|>"]
    # One merge, because readers want a list of them: two zero bytes.
    pair = names[0] * 2
    fillers = [pair, *(f"<{i}>" for i in range(shape.vocab - len(names) - len(special) - 1))]
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*names, *special, *fillers])
    writer.add_token_types([normal] * len(names) + [control] * 2 + [normal] * len(fillers))
    writer.add_token_merges([f"{names[0]} {names[0]}"])
    writer.add_bos_token_id(len(names))
    writer.add_eos_token_id(len(names) + 1)
    writer.add_add_bos_token(False)


def _byte_names() -> list[str]:
    """A printable character for each byte, as GPT-2's byte-level vocabulary writes them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in plain]
    names = {byte: chr(byte) for byte in plain}
    names |= {byte: chr(256 + i) for i, byte in enumerate(other)}
    return [names[byte] for byte in range(256)]


def main() -> None:
    """Writes one file and says how large it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write(args.path, SHAPES[args.shape], args.seed)
    print(f"{args.path}: {args.path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
