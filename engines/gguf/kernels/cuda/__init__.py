"""Products on NVIDIA GPUs, through ``mx.fast.cuda_kernel``: the source of this folder is compiled on the machine that runs it.

- ``kernels.cuh`` includes the device source: ``blocks.cuh`` takes each quant type apart in registers, ``accumulate.cuh``
  multiplies, ``product.cuh`` has the kernels that make use of the sums, ``dequantize.cuh`` writes weights out, whole matrices
  or the rows of an embedding; ``instructions.cuh`` names the machine's instructions, ``../source/scalar.h`` is the slow and
  plain reading of every type.
- ``source.py`` gives that source to the compiler, ``tile.py`` chooses a kernel's shape, ``launch.py`` makes and starts
  kernels, ``backend.py`` decides between them.
- ``ahead.py`` compiles kernels before MLX would have to, all at once, and once a machine: ``kernel.py`` notes which,
  ``nvrtc.py`` is the compiler, ``mlx_module.py`` knows where MLX looks for what it made, ``image_store.py`` keeps it.
"""

from engines.gguf.kernels.cuda.backend import CudaBackend

__all__ = ["CudaBackend"]
