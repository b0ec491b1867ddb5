"""What a back end is."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from engines.gguf.quants import QuantType

__all__ = ["Backend"]


class Backend(Protocol):
    """One way to multiply with K-quant blocks. Called on the device thread only."""

    @property
    def name(self) -> str:
        """What ``doctor``, the demo and the metrics call it."""
        ...

    @property
    def lazy(self) -> bool:
        """Whether ``multiply`` only adds to MLX's graph, so that an answer nobody evaluates costs nothing."""
        ...

    @property
    def checks(self) -> bool:
        """Whether ``multiply`` takes ``x`` of any shape and raises ValueError itself when something does not fit."""
        ...

    def available(self) -> bool:
        """Whether it can run on MLX's default device as this process is installed."""
        ...

    def multiply(self, x: mx.array, blocks: mx.array, quant: QuantType, transpose: bool) -> mx.array:
        """The product of ``x`` with weights [rows, columns] in uint8 ``blocks`` [rows, row bytes].

        ``x`` is [m, columns] and the answer [m, rows] with ``transpose``, else [m, rows] and [m, columns]. ``x`` is floating;
        the answer has its dtype, the sums are float32. m, rows and columns are at least 1, and the shapes agree, unless the
        back end ``checks``; it then takes leading axes, too.
        """
        ...

    def set_cores(self, count: int) -> None:
        """Use at most so many CPU cores from now on. Nothing to do where the CPU does not do the work."""
        ...
