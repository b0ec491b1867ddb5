"""Products on Apple GPUs. None of it has been run on one: ``docs/gguf-gpu.md`` says what has been checked instead.

In order of preference:

- ``library.py``: mlx-kquant's kernels, where the package imports and keeps what it promises;
- ``kernels.py``: kernels of our own through ``mx.fast.metal_kernel``, on the scalar reading that CUDA shares and tests;
- ``repack.py``: weights in MLX's own affine format, near-lossless but larger, for where neither compiles.
"""

from engines.gguf.kernels.metal.backend import MetalBackend

__all__ = ["MetalBackend"]
