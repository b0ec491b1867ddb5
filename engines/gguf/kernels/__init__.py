"""Products with K-quant blocks, one back end a folder behind one function.

``engines.gguf.qmatmul.qmatmul`` checks shapes and hands the product to the first back end of ``table.py`` that can run on
MLX's default device:

- ``cpu``: the device is the CPU and the C++ extension of this folder has been compiled. Lazy, and the fastest there.
- ``blas``: the device is the CPU. NumPy takes tiles of rows apart and multiplies them through its own BLAS, since the BLAS
  that MLX's CPU wheel brings is the reference one, some thirty times slower. Eager: the product is computed in the call.
- ``cuda``: the device is an NVIDIA GPU. Lazy; MLX compiles the kernels at their first use.
- ``metal``: the device is an Apple GPU. Lazy; not run on one yet.
- ``portable``: any device, MLX ops only, lazy.

A new back end is a folder with a :class:`~engines.gguf.kernels.backend.Backend` and an entry in the table.
"""

from engines.gguf.kernels.backend import Backend
from engines.gguf.kernels.status import KernelStatus, status
from engines.gguf.kernels.table import BACKENDS, backend, backend_name, set_cores

__all__ = ["BACKENDS", "Backend", "KernelStatus", "backend", "backend_name", "set_cores", "status"]
