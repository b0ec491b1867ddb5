"""Tensors by name, from a GGUF file or from safetensors, as the leaves of an encoder.

A matrix stays as it lies in the file, quantised or not: F32, F16 and BF16 are quant types like any other. With the compiled CPU
kernels it is the file's own pages, but for small matrices that are put together (:meth:`Linear.joined`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import mlx.core as mx
import numpy as np
from mlx.nn.layers.activations import gelu, gelu_approx, silu

from engines.checkpoint_file import FileIdentity
from engines.errors import CheckpointError, UnsupportedModel
from engines.gguf.experts import KQuantSwitchLinear
from engines.gguf.fused import ACTIVATIONS, can_fuse
from engines.gguf.kernels import backend
from engines.gguf.kernels.cpu import extension
from engines.gguf.layers import KQuantEmbedding
from engines.gguf.qmatmul import qmatmul
from engines.gguf.quants import FloatType, QuantType, quant_type
from engines.gguf.tensors import TensorFile, open_bytes
from engines.header import GgufHeader, SafetensorsHeader

__all__ = ["GgufWeights", "Linear", "SafetensorsWeights", "Weights", "activate", "weights_of"]

_FLOATS: Final = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
_FUNCTIONS: Final[dict[str, Any]] = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_approx}


def activate(x: mx.array, activation: str | None) -> mx.array:
    """One of :data:`engines.gguf.fused.ACTIVATIONS`; None: as it is."""
    if activation is None:
        return x
    answer: mx.array = _FUNCTIONS[activation](x)
    return answer


class Linear:
    """``activation(x @ weight.T + bias)``; weights [rows, columns] as blocks, the bias in the compute dtype.

    On a GPU float weights are kept in the compute dtype, for MLX's own product.
    """

    def __init__(self, blocks: mx.array, quant: QuantType, bias: mx.array | None, compute: mx.Dtype) -> None:
        self.blocks = blocks
        self.quant = quant
        self.bias = bias
        self.rows = blocks.shape[0]
        self.columns = quant.columns(blocks.shape[1])
        self._dense: mx.array | None = None
        compiled = extension() if can_fuse() else None
        self._compiled = None if compiled is None else compiled.dense
        self._gated = None if compiled is None else compiled.gated_product
        if mx.default_device().type != mx.DeviceType.cpu and isinstance(quant, FloatType):
            self._dense = quant.dequantize(blocks).astype(compute)
            mx.eval(self._dense)
            self.blocks = mx.zeros((0, blocks.shape[1]), mx.uint8)

    def __call__(self, x: mx.array, activation: str | None = None) -> mx.array:
        """x [..., columns] to [..., rows]."""
        if self._compiled is not None:
            index = -1 if activation is None else ACTIVATIONS.index(activation)
            return self._compiled(x, self.blocks, self.quant.ggml_id, self.bias, index)
        out = qmatmul(x, self.blocks, self.quant) if self._dense is None else x @ self._dense.T
        return activate(out if self.bias is None else out + self.bias, activation)

    def gated(self, up: Linear, x: mx.array, activation: str) -> mx.array:
        """``activation(self(x)) * up(x)``"""
        if self._gated is not None and self.bias is None and up.bias is None:
            index = ACTIVATIONS.index(activation)
            return self._gated(x, self.blocks, up.blocks, self.quant.ggml_id, up.quant.ggml_id, index)
        return self(x, activation) * up(x)

    @staticmethod
    def joined(parts: Sequence[Linear], compute: mx.Dtype) -> Linear | None:
        """One matrix of all their rows, a copy of at most ``_JOINED_BYTES``; None where there is no such or it saves nothing.

        Starting a product costs as much for a small matrix as for a large one: with its query, key and value matrices together
        all-MiniLM-L6-v2 reads one text in 5 to 7 % less.
        """
        first = parts[0]
        alike = all(
            part.quant is first.quant and part.columns == first.columns and (part.bias is None) == (first.bias is None)
            for part in parts
        )
        if first._compiled is None or not alike or sum(part.blocks.nbytes for part in parts) > _JOINED_BYTES:
            return None
        blocks = mx.concatenate([part.blocks for part in parts])
        biases = [part.bias for part in parts if part.bias is not None]
        bias = mx.concatenate(biases) if biases else None
        mx.eval(blocks, *([] if bias is None else [bias]))
        return Linear(blocks, first.quant, bias, compute)

    def halves(self, compute: mx.Dtype) -> tuple[Linear, Linear]:
        """The matrices of the first and of the second half of the rows."""
        half = self.rows // 2
        blocks = self.blocks if self._dense is None else self._dense.view(mx.uint8)
        quant = self.quant if self._dense is None else quant_type(_NAMES[compute])
        biases = (None, None) if self.bias is None else (self.bias[:half], self.bias[half:])
        parts = (blocks[:half], blocks[half:])
        mx.eval(parts, *[bias for bias in biases if bias is not None])
        return Linear(parts[0], quant, biases[0], compute), Linear(parts[1], quant, biases[1], compute)


_JOINED_BYTES: Final = 1 << 20
_NAMES: Final = {dtype: name for name, dtype in _FLOATS.items()}


class Weights(Protocol):
    """The tensors of a checkpoint; ``taken`` remembers which were asked for. Device thread."""

    path: str
    compute: mx.Dtype
    taken: set[str]

    def has(self, name: str) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """CheckpointError when there is no such tensor."""
        ...

    def blocks(self, name: str) -> tuple[mx.array, QuantType]:
        """Rows as they lie in the file: uint8 [..., row bytes]."""
        ...

    def left(self) -> list[str]:
        """Names that were never asked for."""
        ...

    def nbytes(self) -> tuple[int, int]:
        """Bytes of the tensors that were asked for, and of all."""
        ...


class GgufWeights:
    """Of a GGUF file or a split set."""

    def __init__(self, header: GgufHeader, compute: mx.Dtype) -> None:
        self.path = header.path
        self.compute = compute
        self.taken: set[str] = set()
        self._header = header
        self._file = TensorFile(header)

    def has(self, name: str) -> bool:
        return name in self._header.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.info(name).shape

    def blocks(self, name: str) -> tuple[mx.array, QuantType]:
        self.taken.add(name)
        return self._file.blocks(name), self._file.quant(name)

    def left(self) -> list[str]:
        return [name for name in self._header.tensors if name not in self.taken]

    def nbytes(self) -> tuple[int, int]:
        sizes = {name: tensor.nbytes for name, tensor in self._header.tensors.items()}
        return sum(sizes[name] for name in self.taken), sum(sizes.values())


class SafetensorsWeights:
    """Of one file, or of the shards of a directory. Float tensors only."""

    def __init__(self, header: SafetensorsHeader, compute: mx.Dtype) -> None:
        self.path = header.paths[0]
        self.compute = compute
        self.taken: set[str] = set()
        self._header = header
        self._files: dict[int, Any] = {}

    def has(self, name: str) -> bool:
        return name in self._header.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        tensor = self._header.tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{self.path}: tensor '{name}' is missing")
        return tensor.shape

    def blocks(self, name: str) -> tuple[mx.array, QuantType]:
        shape, tensor = self.shape(name), self._header.tensors[name]
        self.taken.add(name)
        if tensor.dtype not in _FLOATS:
            raise UnsupportedModel(
                f"{self.path}: tensor '{name}' is {tensor.dtype}; F32, F16 and BF16 can be computed with"
            )
        quant = quant_type(tensor.dtype)
        *rows, columns = shape or (1,)
        source = self._files.get(tensor.file)
        if source is None:
            identity: FileIdentity = self._header.files[tensor.file].identity
            source = self._files[tensor.file] = open_bytes(identity)
        return source.read(tensor.offset, [*rows, quant.row_bytes(columns)]), quant

    def left(self) -> list[str]:
        return [name for name in self._header.tensors if name not in self.taken]

    def nbytes(self) -> tuple[int, int]:
        sizes = {name: tensor.nbytes for name, tensor in self._header.tensors.items()}
        return sum(sizes[name] for name in self.taken), sum(sizes.values())


def weights_of(header: GgufHeader | SafetensorsHeader, compute: mx.Dtype) -> Weights:
    """The weights behind a header."""
    if isinstance(header, GgufHeader):
        return GgufWeights(header, compute)
    return SafetensorsWeights(header, compute)


# --- leaves ---


def vector(weights: Weights, name: str, size: int) -> mx.array:
    """A vector of floats in the compute dtype; CheckpointError when it has another size."""
    _check(weights, name, (size,))
    blocks, quant = weights.blocks(name)
    values = quant.dequantize(blocks).astype(weights.compute)
    mx.eval(values)
    return values


def table(weights: Weights, name: str, rows: int | None, width: int) -> mx.array:
    """A small table of floats, dequantised, in the compute dtype; as many rows as the file has where ``rows`` is None."""
    _check(weights, name, (row_count(weights, name, width) if rows is None else rows, width))
    blocks, quant = weights.blocks(name)
    values = quant.dequantize(blocks).astype(weights.compute)
    mx.eval(values)
    return values


def embedding(weights: Weights, name: str, rows: int, width: int) -> KQuantEmbedding:
    """The token embedding, on the file's blocks."""
    _check(weights, name, (rows, width))
    blocks, quant = weights.blocks(name)
    return KQuantEmbedding(blocks, quant, weights.compute)


def linear(weights: Weights, name: str, rows: int, columns: int, *, biased: bool = False) -> Linear:
    """``name``.weight, with ``name``.bias where the file has one; it must have one where ``biased``."""
    _check(weights, f"{name}.weight", (rows, columns))
    blocks, quant = weights.blocks(f"{name}.weight")
    bias = vector(weights, f"{name}.bias", rows) if biased or weights.has(f"{name}.bias") else None
    return Linear(blocks, quant, bias, weights.compute)


def experts(weights: Weights, name: str, count: int, rows: int, columns: int) -> KQuantSwitchLinear:
    """The matrices of a mixture, ``name``.weight [count, rows, columns]."""
    _check(weights, f"{name}.weight", (count, rows, columns))
    blocks, quant = weights.blocks(f"{name}.weight")
    return KQuantSwitchLinear(blocks, quant)


def to_numpy(x: mx.array) -> np.ndarray:
    """Evaluated, as float32."""
    return np.array(x.astype(mx.float32))


def lazy_products() -> bool:
    """Whether a forward pass only makes a graph."""
    return backend().lazy


def row_count(weights: Weights, name: str, columns: int) -> int:
    """Rows of a matrix of so many columns; CheckpointError when it is something else, or has none."""
    found = weights.shape(name)
    if len(found) != 2 or found[0] < 1 or found[1] != columns:
        raise CheckpointError(
            f"{weights.path}: tensor '{name}' is {list(found)}, the configuration makes it rows of {columns}"
        )
    return found[0]


def _check(weights: Weights, name: str, shape: tuple[int, ...]) -> None:
    found = weights.shape(name)
    if tuple(found) != shape:
        raise CheckpointError(
            f"{weights.path}: tensor '{name}' is {list(found)}, the configuration makes it {list(shape)}"
        )
