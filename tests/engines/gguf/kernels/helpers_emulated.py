"""Compiles the CUDA kernels for the CPU, where ``emulated_cuda.h`` stands for the device, and makes the arrays they take."""

import ctypes
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

__all__ = ["aligned", "bfloat16_bits", "bfloat16_values", "compiled"]

_COMPILER = shutil.which("g++") or shutil.which("c++")
_SOURCES = ("blocks.cuh", "looked_up.cuh", "accumulate.cuh", "product.cuh", "layer.cuh", "attention.cuh")

Floats = NDArray[np.float64]
Scalar = TypeVar("Scalar", bound=np.generic)


def compiled(functions: str, folder: Path) -> ctypes.CDLL:
    """The library of these functions, C++ that may call any kernel. Skips the test where no compiler can make it."""
    if _COMPILER is None:
        pytest.skip("no C++ compiler")
    probe = [_COMPILER, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    if subprocess.run(probe, input=b"_Float16 half = 1;", capture_output=True).returncode:
        pytest.skip("the C++ compiler has no _Float16")
    here = Path(__file__).parent
    for name in ("cuda_fp16.h", "cuda_bf16.h"):
        (folder / name).write_text(f'#include "{here}/emulated_cuda.h"\n', encoding="utf-8")
    source = files("engines.gguf.kernels.cuda")
    text = "".join(f'#include "{source.joinpath(name)}"\n' for name in _SOURCES) + functions
    (folder / "kernels.cpp").write_text(text, encoding="utf-8")
    made = folder / "kernels.so"
    command = [_COMPILER, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{folder}", "-o", str(made), "kernels.cpp"]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return ctypes.CDLL(str(made))


def aligned(values: NDArray[Scalar]) -> NDArray[Scalar]:
    """A copy that begins at a multiple of 64 bytes."""
    room = np.zeros(values.nbytes + 64, np.uint8)
    begin = -room.ctypes.data % 64
    copy: NDArray[Scalar] = room[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def bfloat16_bits(values: Floats) -> NDArray[np.uint16]:
    return ((values.astype(np.float32).view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def bfloat16_values(bits: NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
