"""Quant types: how the weights of a GGUF tensor are coded.

A tensor's row of weights lies in the file as a sequence of blocks. A :class:`QuantType` knows the size of a block and turns
rows of bytes into float32, with NumPy (tools, tests, products through NumPy's BLAS) or with MLX ops (any device). Both give
the very bits of the format's reference. One file a type; a new type is one file and one entry in ``table.py``. Types
whose weights are looked up share ``lookup.py``, and ``grids.h`` with the kernels.

Bytes flow: ``TensorFile.blocks`` (uint8 rows) → ``KQuantLinear`` keeps them → ``qmatmul`` takes a tile of rows
apart and multiplies it.
"""

from engines.gguf.quants.base import BlockType, FloatType, Planes, QuantType
from engines.gguf.quants.table import QUANT_TYPES, quant_type

__all__ = ["QUANT_TYPES", "BlockType", "FloatType", "Planes", "QuantType", "quant_type"]
