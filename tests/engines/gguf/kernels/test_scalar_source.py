"""The scalar reading of every type that CUDA and Metal share, compiled for the CPU and held against NumPy's."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from engines.gguf.kernels.source import inlined
from engines.gguf.quants import QUANT_TYPES, BlockType, QuantType
from tests.engines.gguf.helpers_blocks import random_blocks

BLOCK_TYPES = [quant for quant in QUANT_TYPES if isinstance(quant, BlockType)]
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
COLUMNS = 1024

PRELUDE = """
#include <cstring>
#define KQ_FN static inline
#define KQ_BYTES const unsigned char*
#define KQ_TABLE static const
static float kq_float_bits(unsigned word) {
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}
static float kq_half_bits(unsigned short bits) {
  unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
  float value;
  if (exponent == 0) {
    value = fraction * (1.0f / 16777216.0f);
    return sign ? -value : value;
  }
  unsigned word = sign | (exponent + 112) << 23 | fraction << 13;
  std::memcpy(&value, &word, 4);
  return value;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    folder: Path = tmp_path_factory.mktemp("scalar")
    source = inlined("engines.gguf.kernels.source", "octets.h")
    readers = "".join(
        f'extern "C" void read_{quant.name}(const unsigned char* row, int count, float* out) '
        f"{{ for (int i = 0; i < count; i++) out[i] = kq_{quant.name.lower()}(row, i); }}\n"
        for quant in BLOCK_TYPES
    )
    (folder / "scalar.cpp").write_text(PRELUDE + source + readers, encoding="utf-8")
    made = folder / "scalar.so"
    command = [COMPILER, "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-o", str(made), str(folder / "scalar.cpp")]
    subprocess.run(command, check=True, capture_output=True)
    return ctypes.CDLL(str(made))


@pytest.mark.parametrize("quant", BLOCK_TYPES, ids=lambda quant: quant.name)
def test_scalar_source_reads_every_weight_exactly(library: ctypes.CDLL, quant: QuantType) -> None:
    raw = random_blocks(quant, 1, COLUMNS, seed=7)
    out = np.zeros(COLUMNS, np.float32)
    pointer = ctypes.c_void_p
    library[f"read_{quant.name}"](raw.ctypes.data_as(pointer), COLUMNS, out.ctypes.data_as(pointer))
    assert np.array_equal(out, quant.dequantize_numpy(raw)[0])
