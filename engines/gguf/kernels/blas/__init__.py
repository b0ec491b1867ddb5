"""Products on the CPU through NumPy and the BLAS in NumPy's own wheel: nothing to compile, and far faster than MLX's CPU ops.

``backend.py`` splits the rows of a matrix over the cores, ``product.py`` multiplies a tile of rows, ``row_pool.py`` has the
threads, ``blas_threads.py`` keeps BLAS itself to one.
"""

from engines.gguf.kernels.blas.backend import BlasBackend

__all__ = ["BlasBackend"]
