"""Which exceptions say that memory ran out.

CUDA's allocator raises; Metal's aborts the process; a CPU's raises ``std::bad_alloc``, where the system refuses at all. MLX
throws them as RuntimeError with a text of its own, so it is the text that tells: of ``mlx/backend/*/allocator.cpp`` and of the
CUDA runtime's error strings.
"""

from __future__ import annotations

__all__ = ["is_memory_error"]

_SIGNS = (
    "out of memory",  # cudaErrorMemoryAllocation, cuBLAS and Metal's command buffers
    "unable to allocate",
    "failed to allocate",
    "bad_alloc",
    "attempting to allocate",  # metal::malloc, beyond the largest buffer
    "insufficient memory",  # kIOGPUCommandBufferCallbackErrorOutOfMemory
    "cudaerrormemoryallocation",
    "alloc_failed",  # CUBLAS_STATUS_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED
)


def is_memory_error(error: BaseException) -> bool:
    """Whether freeing memory and trying again may help."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError | ValueError):
        return False
    text = str(error).lower()
    return any(sign in text for sign in _SIGNS)
