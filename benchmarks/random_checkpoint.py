"""Writes a GGUF checkpoint of a Llama with random weights, of a size of one's choosing, that any Llama loader takes.

    python benchmarks/random_checkpoint.py OUT.gguf --like FILE.gguf [--shape 8B]

``--like`` is a Llama checkpoint whose tokenizer and other metadata it gets. Types are mixed as in Q4_K_M files: Q4_K, and Q6_K for
the head and for half of the value and down projections. Weights repeat after some million: they are for measuring, not for reading.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engines.ggml_types import GgmlType
from engines.gguf.writer import PlannedTensor, rewrite_checkpoint
from engines.header import GgufArray, GgufHeader, read_header

__all__ = ["SHAPES", "Shape", "write_random"]

_POOL_BLOCKS = 1 << 14  # of random blocks that repeat
_FACTORS_AT = {GgmlType.Q4_K: (0, 2), GgmlType.Q6_K: (208,)}  # byte offsets of a block's float16 factors
_SPREAD = {GgmlType.Q4_K: 300.0, GgmlType.Q6_K: 1400.0}  # the deviation of weights under a factor of 1, about


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    context: int = 8192


SHAPES = {
    "0.1GB": Shape(12, 1024, 2816, 16, 4),
    "0.5GB": Shape(16, 2048, 5632, 16, 4),
    "1GB": Shape(24, 2560, 6912, 20, 4),
    "4GB": Shape(30, 4096, 14336, 32, 8),
    "8B": Shape(32, 4096, 14336, 32, 8),
}


def write_random(path: Path, like: GgufHeader, shape: Shape, seed: int = 0) -> Path:
    """The path. ``like`` must be of the architecture ``llama``."""
    numbers = {
        "llama.block_count": shape.layers,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.hidden,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.rope.dimension_count": shape.width // shape.heads,
        "llama.context_length": shape.context,
    }
    tokens = like.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, GgufArray)
    pools = {kind: _pool(kind, shape.width, seed) for kind in _FACTORS_AT}

    def data(tensor: PlannedTensor) -> Iterator[NDArray[np.uint8]]:
        if tensor.type is GgmlType.F32:
            yield np.ones(tensor.shape, np.float32).view(np.uint8)
            return
        pool, left = pools[tensor.type], tensor.nbytes
        while left:
            piece = pool[: min(left, len(pool))]
            yield piece
            left -= len(piece)

    return rewrite_checkpoint(path, like, numbers, list(_tensors(shape, len(tokens))), data)


def _tensors(shape: Shape, vocabulary: int) -> Iterator[PlannedTensor]:
    width, kv_width = shape.width, shape.width // shape.heads * shape.kv_heads
    q4, q6 = GgmlType.Q4_K, GgmlType.Q6_K
    yield PlannedTensor("token_embd.weight", q4, (vocabulary, width))
    for layer in range(shape.layers):
        better = q6 if layer % 2 else q4
        matrices = {
            "attn_q": (q4, width, width),
            "attn_k": (q4, kv_width, width),
            "attn_v": (better, kv_width, width),
            "attn_output": (q4, width, width),
            "ffn_gate": (q4, shape.hidden, width),
            "ffn_up": (q4, shape.hidden, width),
            "ffn_down": (better, width, shape.hidden),
        }
        for name in ("attn_norm", "ffn_norm"):
            yield PlannedTensor(f"blk.{layer}.{name}.weight", GgmlType.F32, (width,))
        for name, (kind, rows, columns) in matrices.items():
            yield PlannedTensor(f"blk.{layer}.{name}.weight", kind, (rows, columns))
    yield PlannedTensor("output_norm.weight", GgmlType.F32, (width,))
    yield PlannedTensor("output.weight", q6, (vocabulary, width))


def _pool(kind: GgmlType, width: int, seed: int) -> NDArray[np.uint8]:
    """Random blocks, flat: weights of a deviation that keeps a layer's answers as large as what goes into it."""
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (_POOL_BLOCKS, kind.block_bytes), dtype=np.uint8)
    for at in _FACTORS_AT[kind]:
        sign = generator.choice((-1.0, 1.0), _POOL_BLOCKS)
        factor = sign * generator.uniform(0.5, 1.5, _POOL_BLOCKS) / _SPREAD[kind] / width**0.5
        blocks[:, at : at + 2] = factor.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return blocks.reshape(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--like", type=Path, required=True, help="a Llama checkpoint whose tokenizer it gets")
    parser.add_argument("--shape", choices=SHAPES, default="8B")
    options = parser.parse_args()
    path = write_random(options.out, read_header(options.like), SHAPES[options.shape])
    print(f"{path}: {path.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
