"""mlx-kquant, if it is there and does what it says.

What is relied on: rows of uint8 as GGUF has them, codec names that are GGML's in lower case, ``dequantize`` in the dtype that
is asked for, ``quantized_matmul`` in the dtype of its activations, float16 or bfloat16 (float32 it turns into bfloat16, so
those products are not given to it). The scales argument is a placeholder: K-quants keep their scales in the rows.
"""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
import numpy as np

from engines.gguf.quants import BlockType, QuantType

__all__ = ["KQuantLibrary", "find_library"]

_NEAR = 2e-3  # of a product in float16


class KQuantLibrary:
    """The module behind the calls the Metal back end makes."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._codecs = frozenset(str(name) for name in module.codecs())
        self._kept: dict[str, bool] = {}

    def takes(self, quant: QuantType) -> bool:
        """Whether it has this type and reads it as we do, found out once by a block of known bytes."""
        name = quant.name.lower()
        if name not in self._kept:
            self._kept[name] = isinstance(quant, BlockType) and name in self._codecs and self._keeps_contract(quant)
        return self._kept[name]

    def multiply(self, x: mx.array, blocks: mx.array, quant: QuantType, transpose: bool) -> mx.array:
        out: mx.array = self._module.quantized_matmul(x, blocks, _no_scales(), quant.name.lower(), transpose=transpose)
        return out

    def dequantize(self, blocks: mx.array, quant: QuantType, dtype: mx.Dtype) -> mx.array:
        out: mx.array = self._module.dequantize(blocks, _no_scales(), quant.name.lower(), dtype=dtype)
        return out

    def _keeps_contract(self, quant: QuantType) -> bool:
        """Two rows of one block of many different bytes, every second one small enough that any float16 is below 1."""
        raw = (np.arange(2 * quant.block_bytes, dtype=np.uint16) * 37 + 11).astype(np.uint8).reshape(2, -1)
        raw[:, 1::2] &= 0x3B
        blocks, weights = mx.array(raw), quant.dequantize_numpy(raw).astype(np.float64)
        read = self.dequantize(blocks, quant, mx.float32)
        x = mx.ones((1, quant.block_size), mx.float16) / quant.block_size
        out = self.multiply(x, blocks, quant, transpose=True)
        if read.dtype != mx.float32 or out.dtype != mx.float16 or out.shape != (1, 2):
            return False
        expected = np.array(x.astype(mx.float32)).astype(np.float64) @ weights.T
        return _near(np.array(read), weights) and _near(np.array(out.astype(mx.float32)), expected)


def find_library(name: str = "mlx_kquant") -> KQuantLibrary | None:
    """The installed package, or None where it is missing, cannot load its kernels, or lacks a function."""
    try:
        module = importlib.import_module(name)
    except (ImportError, OSError, RuntimeError):
        return None
    if not all(hasattr(module, each) for each in ("codecs", "dequantize", "quantized_matmul")):
        return None
    return KQuantLibrary(module)


def _no_scales() -> mx.array:
    return mx.zeros((1,), mx.uint8)


def _near(got: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.linalg.norm(got - expected) <= _NEAR * np.linalg.norm(expected))
