"""Products and the small operations around them, compiled: a C++ extension of MLX, lazy, for float32 on the CPU.

``src`` is its source, ``build.py`` compiles it (``make kernels``, or ``python -m engines.gguf.kernels.cpu.build``),
``extension.py`` loads what was compiled if it fits this MLX and this Python, ``backend.py`` puts its products behind
``qmatmul``. Nothing here is needed: without it the next back end of ``engines.gguf.kernels.table`` serves.

In ``src``: ``vector.h`` is the one file that knows instruction sets; ``formats.h`` and ``looked_up.h`` the quant types;
``product.h``, ``attention.h`` and ``rows.h`` the kernels, compiled once a variant (``variant_*.cpp``) into a ``table.h`` of
functions, of which ``dispatch.cpp`` picks one when the program runs. ``operands`` makes activations ready for a type, ``multiply``
multiplies them with whole matrices; ``product.cpp``, ``matrices.cpp`` (experts and heads), ``layer.cpp`` (a decoder's layer),
``attention.cpp``, ``row_operations.cpp`` and ``draw.cpp`` are MLX primitives, the functions of ``operations.h``.
"""

from engines.gguf.kernels.cpu.backend import CpuBackend
from engines.gguf.kernels.cpu.extension import Extension, FileMapping, extension, why_missing

__all__ = ["CpuBackend", "Extension", "FileMapping", "extension", "why_missing"]
