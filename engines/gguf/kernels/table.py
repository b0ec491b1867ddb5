"""The back ends, best first, and the choice among them."""

from __future__ import annotations

from engines.gguf.kernels.backend import Backend
from engines.gguf.kernels.blas import BlasBackend
from engines.gguf.kernels.cpu import CpuBackend
from engines.gguf.kernels.cuda import CudaBackend
from engines.gguf.kernels.metal import MetalBackend
from engines.gguf.kernels.portable import PortableBackend

__all__ = ["BACKENDS", "backend", "backend_name", "set_cores"]

BACKENDS: tuple[Backend, ...] = (CudaBackend(), MetalBackend(), CpuBackend(), BlasBackend(), PortableBackend())


def backend(*, lazy: bool = False) -> Backend:
    """The first that is available, and lazy if it must be; the last always is."""
    # A plain loop: this runs hundreds of times a token, where a GPU waits for the host.
    for candidate in BACKENDS:
        if candidate.available() and (candidate.lazy or not lazy):
            return candidate
    raise AssertionError("the portable back end is always available")


def backend_name() -> str:
    """Name of the back end in use."""
    return backend().name


def set_cores(count: int) -> None:
    """This worker's share of the CPU cores, at least 1."""
    for each in BACKENDS:
        each.set_cores(max(1, count))
