"""Short convolutions of each channel on its own, and the activation behind them.

On a CPU MLX's convolution of a prompt lays its inputs out once for each tap, and its sigmoid goes number by number: here taps are
multiplied and added, with the same bits, and the activation is the compiled kernels'.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx
from mlx.nn.layers.activations import silu

from engines.gguf.kernels import backend
from engines.gguf.kernels.cpu import extension

__all__ = ["convolved", "last_columns"]

_SILU: Final = 0  # the extension's number for it
_FEW: Final = 8  # tokens: fewer are convolved faster by MLX


def convolved(conv: Any, inputs: mx.array) -> mx.array:
    """``silu(conv(inputs))``: [rows, tokens + taps - 1, channels] to [rows, tokens, channels]. ``conv`` is a depthwise
    ``nn.Conv1d`` without padding."""
    weight = conv["weight"]  # [channels, taps, 1]
    tokens = inputs.shape[1] - weight.shape[1] + 1
    if mx.default_device().type != mx.DeviceType.cpu or tokens < _FEW:
        out = conv(inputs)
    else:
        out = inputs[:, :tokens] * weight[:, 0, 0]
        for tap in range(1, weight.shape[1]):
            out = out + inputs[:, tap : tap + tokens] * weight[:, tap, 0]
        if "bias" in conv:
            out = out + conv["bias"]
    compiled = extension() if backend().name == "cpu" else None
    if compiled is None:
        activated: mx.array = silu(out)
        return activated
    return compiled.gated(out, mx.ones_like(out), _SILU)


def last_columns(inputs: mx.array, kept: int, lengths: mx.array | None) -> mx.array:
    """What a convolution will need of [rows, kept + tokens, channels]: of each row the last ``kept`` before its padding, in memory
    of their own. ``lengths`` are the rows' tokens; None: all.

    Computed at once for a prompt: as a promise they would keep the inputs of every layer until the last has been computed.
    """
    if lengths is None:
        columns = mx.contiguous(inputs[:, -kept:])
    else:
        ends = mx.clip(lengths, 0, inputs.shape[1] - kept)
        columns = mx.take_along_axis(inputs, (ends[:, None] + mx.arange(kept))[..., None], axis=1)
    if inputs.shape[1] - kept >= _FEW:
        mx.eval(columns)
    return columns
