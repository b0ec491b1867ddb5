"""Recurrent layers that read a prompt part by part, because what they compute it with keeps a state for every token.

mlx-lm's Kimi delta attention computes token by token where there is no Metal kernel, as one graph: at 512 tokens of a 48B model
that is 1 GiB a layer.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx
from mlx.nn.layers.base import Module

__all__ = ["InParts", "adapt"]

_PART: Final = 32  # tokens


def adapt(model: Any, plan: Any) -> None:
    """Replaces the attention of every recurrent layer."""
    for layer in model.layers:
        if layer.is_linear:
            layer.self_attn = InParts(layer.self_attn)


class InParts(Module):
    """A stock module with its children under their names, given at most so many tokens at a time, each part computed at once."""

    def __init__(self, stock: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        for name, value in vars(stock).items():
            setattr(self, name, value)
        for name, child in stock.items():
            self[name] = child
        self._stock_call = type(stock).__call__  # given this module, whose children may have been replaced

    def __call__(self, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> Any:
        """x [rows, tokens, width]; ``mask`` [rows, tokens]. Without a cache there is nothing to carry over."""
        tokens = x.shape[1]
        if tokens <= _PART or cache is None or mx.metal.is_available():
            return self._stock_call(self, x, mask, cache)
        outs = []
        for start in range(0, tokens, _PART):
            part = slice(start, start + _PART)
            out = self._stock_call(self, x[:, part], None if mask is None else mask[:, part], cache)
            mx.eval(out, cache.state)
            outs.append(out)
        return mx.concatenate(outs, axis=1)
