"""Dequantise a tile of rows, multiply, and so on down the matrix."""

from __future__ import annotations

import mlx.core as mx

from engines.gguf.quants import QuantType

__all__ = ["PortableBackend"]

# Weights dequantised at a time: 8 MiB in float32, of which MLX keeps several in flight. An output head of 262144 x 640
# would take 640 MiB at once.
TILE_WEIGHTS = 1 << 21


class PortableBackend:
    """Available everywhere. Computes in float32 whatever the dtype of the activations."""

    name = "portable"
    lazy = True
    checks = False

    def __init__(self, tile_weights: int = TILE_WEIGHTS) -> None:
        self._tile_weights = tile_weights

    def available(self) -> bool:
        return True

    def set_cores(self, count: int) -> None:
        """MLX sizes its own threads."""

    def multiply(self, x: mx.array, blocks: mx.array, quant: QuantType, transpose: bool) -> mx.array:
        rows = blocks.shape[0]
        tile = max(1, self._tile_weights // quant.columns(blocks.shape[1]))
        wide = x.astype(mx.float32)
        parts = []
        for start in range(0, rows, tile):
            weights = quant.dequantize(blocks[start : start + tile])
            parts.append(wide @ weights.T if transpose else wide[:, start : start + tile] @ weights)
        if len(parts) == 1:
            out = parts[0]
        elif transpose:
            out = mx.concatenate(parts, axis=1)
        else:
            out = parts[0]
            for part in parts[1:]:
                out = out + part
        return out.astype(x.dtype)
