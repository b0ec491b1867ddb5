"""Leaves that hold several matrices: the experts of a mixture, and the heads of a multi-head projection.

They stand where mlx-lm's ``SwitchLinear`` and ``MultiLinear`` stood and are called as those are. Where the back end cannot
index on the device, the indices are read by the host and each expert's rows are multiplied by ``qmatmul``.
"""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
from mlx.nn.layers.base import Module

from engines.gguf.kernels import backend
from engines.gguf.kernels.gathering import GatheringBackend, HeadsBackend
from engines.gguf.qmatmul import qmatmul
from engines.gguf.quants import QuantType

__all__ = ["KQuantMultiLinear", "KQuantSwitchLinear", "multiply_experts"]


def multiply_experts(x: mx.array, blocks: mx.array, quant: QuantType, experts: mx.array, share: int = 1) -> mx.array:
    """Row p of the answer [pairs, rows]: row p // ``share`` of ``x`` [pairs / share, columns] times expert ``experts[p]``.

    ``blocks`` is uint8 [experts, rows, row bytes], ``experts`` an integer array [pairs] whose values are not checked. The
    answer has the dtype of ``x``.
    """
    pairs, rows = experts.shape[0], blocks.shape[1]
    if pairs == 0 or x.size == 0:
        return mx.zeros((pairs, rows), x.dtype)
    chosen = backend()
    if isinstance(chosen, GatheringBackend):
        out = chosen.multiply_experts(x, blocks, quant, experts, share)
        if out is not None:
            return out
    return _by_expert(x, blocks, quant, np.asarray(experts.astype(mx.int64)), share)


def _by_expert(x: mx.array, blocks: mx.array, quant: QuantType, experts: np.ndarray, share: int) -> mx.array:
    """One product an expert that is used, on the rows that use it."""
    order = np.argsort(experts, kind="stable")
    starts = np.flatnonzero(np.diff(experts[order], prepend=-1))
    parts = [
        qmatmul(x[mx.array(pairs // share)], blocks[int(experts[pairs[0]])], quant)
        for pairs in np.split(order, starts[1:])
    ]
    return mx.concatenate(parts)[mx.array(np.argsort(order))]


class _Matrices(Module):
    """Weights [count, rows, columns] as uint8 ``blocks`` [count, rows, row bytes]. ValueError when they are not that."""

    def __init__(self, blocks: mx.array, quant: QuantType) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if blocks.dtype != mx.uint8 or blocks.ndim != 3:
            raise ValueError(f"blocks must be uint8 [count, rows, row bytes], not {blocks.dtype} {blocks.shape}")
        self._columns = quant.columns(blocks.shape[2])
        self._quant = quant
        self.blocks = blocks
        self.freeze()

    @property
    def quant(self) -> QuantType:
        return self._quant

    @property
    def weight(self) -> mx.array:
        """All weights, float32 [count, rows, columns], dequantised anew at each access."""
        return self._quant.dequantize(self.blocks)

    def _check(self, x: mx.array, taken: int) -> None:
        if x.ndim < 2 or x.shape[-1] != taken or not mx.issubdtype(x.dtype, mx.floating):
            raise ValueError(f"activations {x.dtype} {x.shape} do not fit {self._quant.name} weights {self._shape}")

    @property
    def _shape(self) -> list[int]:
        return [*self.blocks.shape[:2], self._columns]


class KQuantSwitchLinear(_Matrices):
    """Each row times the transposed weights of the expert that is chosen for it, plus that expert's bias.

    ``bias`` is [experts, rows], of any floating dtype.
    """

    def __init__(self, blocks: mx.array, quant: QuantType, bias: mx.array | None = None) -> None:
        super().__init__(blocks, quant)
        if bias is not None:
            if bias.shape != blocks.shape[:2]:
                raise ValueError(f"bias must be {list(blocks.shape[:2])}, not {bias.shape}")
            self.bias = bias
            self.freeze()

    @property
    def input_dims(self) -> int:
        return self._columns

    @property
    def output_dims(self) -> int:
        return self.blocks.shape[1]

    @property
    def num_experts(self) -> int:
        return self.blocks.shape[0]

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        """x [..., m, columns] and indices [...], whose shapes broadcast: [..., m, rows] in the dtype of ``x``.

        ``sorted_indices`` says that neighbours have the same expert where they can; only speed depends on it.
        """
        self._check(x, self._columns)
        batch, m = mx.broadcast_shapes(x.shape[:-2], indices.shape), x.shape[-2]
        pairs = math.prod(batch)
        experts = mx.broadcast_to(indices, batch).reshape(pairs)
        # Rows that several experts share (an axis of 1 before the indices' last) are not copied for each.
        shares = m == 1 and indices.ndim > 0 and x.shape[:-2] == (*batch[:-1], 1)
        if shares:
            flat, share = x.reshape(-1, self._columns), batch[-1]
        else:
            flat = mx.broadcast_to(x, (*batch, m, self._columns)).reshape(pairs * m, self._columns)
            experts, share = mx.repeat(experts, m) if m > 1 else experts, 1
        out = multiply_experts(flat, self.blocks, self._quant, experts, share).reshape(*batch, m, self.output_dims)
        if "bias" in self:
            out = out + mx.expand_dims(self.bias[mx.broadcast_to(indices, batch)], -2).astype(x.dtype)
        return out

    def _extra_repr(self) -> str:
        experts, rows, columns = self._shape
        return f"{experts} experts, input_dims={columns}, output_dims={rows}, quant={self._quant.name}"


class KQuantMultiLinear(_Matrices):
    """Each head's rows times that head's matrix, either way around."""

    def __call__(self, x: mx.array, transpose: bool = True) -> mx.array:
        """x [..., heads, m, columns] (``transpose``) to [..., heads, m, rows], or [..., heads, m, rows] to columns.

        The axis of heads may be 1 in ``x``: all heads then take the same rows.
        """
        heads, rows, columns = self._shape
        taken, given = (columns, rows) if transpose else (rows, columns)
        self._check(x, taken)
        if x.ndim < 3 or x.shape[-3] not in (1, heads):
            raise ValueError(f"activations {x.shape} do not have {heads} heads")
        shape = (*x.shape[:-3], heads, x.shape[-2])
        if math.prod(shape) == 0:
            return mx.zeros((*shape, given), x.dtype)
        chosen = backend()
        if isinstance(chosen, HeadsBackend):
            return chosen.multiply_heads(x, self.blocks, self._quant, transpose)
        x = mx.broadcast_to(x, (*shape, taken))
        if transpose:
            head = mx.broadcast_to(mx.arange(heads)[:, None], shape).reshape(-1)
            return multiply_experts(x.reshape(-1, taken), self.blocks, self._quant, head).reshape(*shape, given)
        if isinstance(chosen, GatheringBackend):
            flat = self.blocks.reshape(heads * rows, self.blocks.shape[2])
            return x @ chosen.weights(flat, self._quant, x.dtype).reshape(heads, rows, columns)
        parts = [qmatmul(x[..., head, :, :], self.blocks[head], self._quant, transpose=False) for head in range(heads)]
        return mx.stack(parts, axis=-3)

    def _extra_repr(self) -> str:
        heads, rows, columns = self._shape
        return f"num_heads={heads}, input_dims={columns}, output_dims={rows}, quant={self._quant.name}"
