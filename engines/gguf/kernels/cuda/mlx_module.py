"""A custom kernel as MLX hands it to the compiler and looks for it on disk, so that what is compiled here is found there.

MLX 0.32.4 puts a kernel's text together from its header, a signature and its body, and names the module after the kernel and a
hash of that text. Before it compiles it looks for ``<module>.ptx`` (which may hold a cubin) and ``<module>.txt`` (a line: the
kernel's name, a tab, its symbol) in a folder of its own, even for custom kernels, which it never writes there. A module that it
does not find there it compiles: a mistake here costs time and nothing else.

``mx.fast.precompiled_cuda_kernel`` would take an image as well, but MLX hashes the whole image at every launch: some 10 µs for a
cubin, where a launch costs 4.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import mlx.core as mx

__all__ = ["STAND_INS", "VERSIONS", "Argument", "Module", "module_folder", "module_of"]

VERSIONS: Final = ("0.32.4",)
"""Of MLX, whose texts and folder are known to be these."""

_TYPES: Final[dict[mx.Dtype, str]] = {
    mx.bool_: "bool",
    mx.int8: "int8_t",
    mx.int16: "int16_t",
    mx.int32: "int32_t",
    mx.int64: "int64_t",
    mx.uint8: "uint8_t",
    mx.uint16: "uint16_t",
    mx.uint32: "uint32_t",
    mx.uint64: "uint64_t",
    mx.float16: "__half",
    mx.bfloat16: "__nv_bfloat16",
    mx.float32: "float",
}
_LONGEST = 120  # longer names of modules are kept in folders
_TOP = '\n#include "mlx/backend/cuda/device/utils.cuh"\n\n#include <cooperative_groups.h>\n\n'
_NAMESPACE = "mlx::core::cu"

STAND_INS: Final[dict[str, str]] = {
    "mlx/backend/cuda/device/utils.cuh": """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
namespace mlx { namespace core { namespace cu {
template <typename T>
struct of_each_axis {
  T values[10];
  __device__ __forceinline__ const T& operator[](int axis) const { return values[axis]; }
};
using Shape = of_each_axis<int>;
using Strides = of_each_axis<long long>;
}}}
""",
    "cooperative_groups.h": "namespace cooperative_groups {}\n",
}
"""What stands for the headers that MLX includes before a kernel's own: of them the kernels of this package need the half types and
the layout of shapes, ten axes, and the compiler is spared the rest."""


@dataclass(frozen=True)
class Argument:
    """An input by its name in the body."""

    name: str
    dtype: mx.Dtype
    is_scalar: bool  # without an axis


@dataclass(frozen=True)
class Module:
    """``text`` is what is compiled, ``function`` its kernel, ``name`` what MLX calls the module."""

    name: str
    function: str
    text: str


def module_of(
    name: str, header: str, body: str, inputs: Sequence[Argument], outputs: Sequence[tuple[str, mx.Dtype]]
) -> Module | None:
    """What MLX makes of ``mx.fast.cuda_kernel(name=name, …)`` for such arguments; None where that is not known."""
    if any(dtype not in _TYPES for dtype in (*(each.dtype for each in inputs), *(dtype for _, dtype in outputs))):
        return None
    digest = _hash_function()
    if _version() not in VERSIONS or digest is None:
        return None
    function = f"custom_kernel_{name}"
    if len(function) > _LONGEST:
        return None
    parameters = [parameter for each in inputs for parameter in _parameters(each, body)]
    parameters += [f"{_TYPES[dtype]}* {output}" for output, dtype in outputs]
    signature = ",\n".join(f"    {parameter}" for parameter in parameters)
    text = (
        f"{_TOP}{header}namespace {_NAMESPACE} {{\n\nnamespace cg = cooperative_groups;\n\n"
        f"__global__ void {function}(\n{signature}) {{\n{body}\n}}\n\n}} // namespace {_NAMESPACE}\n"
    )
    encoded = text.encode()
    return Module(f"{function}_{digest(encoded, len(encoded), _SEED):x}", f"{_NAMESPACE}::{function}", text)


def _parameters(each: Argument, body: str) -> list[str]:
    """An array and what of its shape the body names."""
    parameters = [f"const {_TYPES[each.dtype]}* {each.name}"]
    if not each.is_scalar:
        for what, kind in (("shape", "Shape"), ("strides", "Strides"), ("ndim", "int")):
            if f"{each.name}_{what}" in body:
                parameters.append(f"const __grid_constant__ {kind} {each.name}_{what}")
    return parameters


def module_folder() -> Path:
    """Where MLX looks for modules, as its process was started."""
    given = os.environ.get("MLX_PTX_CACHE_DIR")
    if given is not None:
        return Path(given)
    # std::filesystem::temp_directory_path
    temporary = next((os.environ[name] for name in ("TMPDIR", "TMP", "TEMP", "TEMPDIR") if name in os.environ), "/tmp")
    return Path(temporary) / "mlx" / _version() / "ptx"


def _version() -> str:
    return str(getattr(mx, "__version__", ""))


_SEED = 0xC70F6907  # of std::hash for strings


@cache
def _hash_function() -> ctypes._CFuncPtr | None:  # type: ignore[name-defined]
    """libstdc++'s std::hash of bytes: the library that MLX itself calls. None where it has no such function."""
    try:
        function = ctypes.CDLL("libstdc++.so.6")._ZSt11_Hash_bytesPKvmm
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t]
    function.restype = ctypes.c_size_t
    return function
