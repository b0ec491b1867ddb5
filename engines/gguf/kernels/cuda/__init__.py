"""Products on NVIDIA GPUs, through ``mx.fast.cuda_kernel``: MLX compiles the source of this folder at first use.

- ``blocks.cuh`` takes each quant type apart in registers; ``product.cuh`` multiplies; ``dequantize.cuh`` writes weights out,
  whole matrices or the rows of an embedding; ``../source/scalar.h`` is the slow and plain reading of every type.
- ``tile.py`` chooses a kernel's shape, ``launch.py`` makes and starts kernels, ``backend.py`` decides between them.
"""

from engines.gguf.kernels.cuda.backend import CudaBackend

__all__ = ["CudaBackend"]
