"""K-quant leaves: the linear layer and the embedding of a stock model, on the file's own blocks.

The blocks are a uint8 parameter: ``set_dtype`` and ``astype`` of floats leave it alone, ``parameters()`` shows it, and it is
frozen. They stand where ``nn.Linear`` and ``nn.Embedding`` stood, and models that touch ``weight`` find it dequantised.
"""

from __future__ import annotations

import mlx.core as mx
from mlx.nn.layers.base import Module

from engines.gguf.kernels import backend
from engines.gguf.kernels.gathering import GatheringBackend
from engines.gguf.qmatmul import qmatmul
from engines.gguf.quants import QuantType

__all__ = ["KQuantEmbedding", "KQuantLinear"]


class _Blocks(Module):
    """Weights [rows, columns] as uint8 ``blocks`` [rows, row bytes]. ValueError when they are not that."""

    def __init__(self, blocks: mx.array, quant: QuantType) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if blocks.dtype != mx.uint8 or blocks.ndim != 2:
            raise ValueError(f"blocks must be uint8 [rows, row bytes], not {blocks.dtype} {blocks.shape}")
        self._columns = quant.columns(blocks.shape[1])
        self._quant = quant
        self.blocks = blocks
        self.freeze()

    @property
    def quant(self) -> QuantType:
        return self._quant

    @property
    def weight(self) -> mx.array:
        """All weights, float32 [rows, columns], dequantised anew at each access: for the few models that read it."""
        return self._quant.dequantize(self.blocks)


class KQuantLinear(_Blocks):
    """``x @ weight.T + bias`` for x [..., columns]; the answer is [..., rows] and has the dtype of ``x``.

    ``bias`` is [rows], of any floating dtype; ``set_dtype`` changes it as any parameter. ``head`` says that this is the
    model's output head (see :func:`_is_prefill`).
    """

    def __init__(self, blocks: mx.array, quant: QuantType, bias: mx.array | None = None, *, head: bool = False) -> None:
        super().__init__(blocks, quant)
        self._head = head
        if bias is not None:
            if bias.shape != (blocks.shape[0],):
                raise ValueError(f"bias must be [{blocks.shape[0]}], not {bias.shape}")
            self.bias = bias
            self.freeze()

    def __call__(self, x: mx.array) -> mx.array:
        # As an item: an attribute of a module is looked for in Python first.
        out = qmatmul(x, self["blocks"], self._quant, lazy=self._head and _is_prefill(x))
        if "bias" in self:
            out = out + self.bias.astype(x.dtype)
        return out

    def _extra_repr(self) -> str:
        rows = self.blocks.shape[0]
        return f"input_dims={self._columns}, output_dims={rows}, quant={self._quant.name}, bias={'bias' in self}"


class KQuantEmbedding(_Blocks):
    """Rows by id, and the same rows as a tied output head.

    Only the rows asked for are read and dequantised. They come in ``dtype``, the model's compute dtype, since activations
    begin here.
    """

    def __init__(self, blocks: mx.array, quant: QuantType, dtype: mx.Dtype = mx.float32) -> None:
        super().__init__(blocks, quant)
        self._dtype = dtype

    def __call__(self, ids: mx.array) -> mx.array:
        """Integer ids [...] to [..., columns]. Ids are not checked, as MLX does not."""
        chosen = backend()
        if isinstance(chosen, GatheringBackend):
            return chosen.rows(self.blocks, ids, self._quant, self._dtype)
        return self._quant.dequantize(self.blocks[ids]).astype(self._dtype)

    def as_linear(self, x: mx.array) -> mx.array:
        """The tied head: x [..., columns] to logits [..., rows], in the dtype of ``x``."""
        return qmatmul(x, self.blocks, self._quant, lazy=_is_prefill(x))

    def _extra_repr(self) -> str:
        return f"num_embeddings={self.blocks.shape[0]}, dims={self._columns}, quant={self._quant.name}"


def _is_prefill(x: mx.array) -> bool:
    """Whether a head's input [batch, tokens, columns] has several tokens a row.

    Prefill evaluates the KV cache and drops the logits. Where products are computed at once, those of a 262144-token
    vocabulary would cost more than the rest of a small model, and 1 MiB a token.
    """
    return x.ndim >= 3 and x.shape[-2] > 1
