"""What a back end offers whose kernels are compiled on the machine that runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

__all__ = ["CompilingBackend"]


@runtime_checkable
class CompilingBackend(Protocol):
    """Compiles many kernels sooner than one after the other."""

    def compile_ahead(self, run: Callable[[], None], report: Callable[[float], None]) -> None:
        """Calls ``run``, in which kernels answer zeros, and compiles those that it called, on as many cores as ``set_cores``
        allows. ``report`` is told the fraction that is done. Where kernels are compiled at their first use, nothing is done. On
        the device thread."""
        ...
