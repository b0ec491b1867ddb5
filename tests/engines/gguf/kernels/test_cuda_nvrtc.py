"""NVIDIA's run-time compiler, which needs no GPU; where it is installed."""

import ctypes
import ctypes.util
import mmap
import sys
from importlib.util import find_spec
from pathlib import Path

import mlx.core as mx
import pytest

from engines.gguf.kernels.cuda import CudaBackend, ahead, kernel, launch
from engines.gguf.kernels.cuda import backend as cuda_backend
from engines.gguf.kernels.cuda.image_store import ImageStore
from engines.gguf.kernels.cuda.mlx_module import STAND_INS
from engines.gguf.kernels.cuda.nvrtc import CompileError, Nvrtc, loaded_library
from engines.gguf.quants import quant_type


def found() -> str | None:
    spec = find_spec("nvidia")
    wheels = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    libraries = [str(path) for wheel in wheels for path in wheel.glob("*/lib/libnvrtc.so.*")]
    return next(iter(libraries), ctypes.util.find_library("nvrtc"))


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    path = found()
    if path is None:
        pytest.skip("no NVRTC")
    for builtins in Path(path).parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))  # a wheel's library looks for it on the search path only, and finds what is loaded
    return Nvrtc(path)


def test_a_kernel_is_compiled_under_the_name_it_has_in_the_image(nvrtc: Nvrtc) -> None:
    text = '#include "own.h"\nnamespace a { __global__ void twice(number* x) { *x *= 2; } }'
    made = nvrtc.compile(text, "a::twice", ["--gpu-architecture=sm_90a"], {"own.h": "typedef float number;"})
    assert made.symbol == "_ZN1a5twiceEPf"
    assert made.image.startswith(b"\x7fELF") and made.symbol.encode() in made.image
    assert nvrtc.version().split(".")[0].isdecimal()


def test_an_error_names_the_place(nvrtc: Nvrtc) -> None:
    with pytest.raises(CompileError, match=r"kernel\.cu\(2\): error: .*undefined"):
        nvrtc.compile("__global__ void k() {\n missing(); }", "k", ["--gpu-architecture=sm_90a"], {})


def test_a_product_compiles_as_mlx_names_it(nvrtc: Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the real source, with the launch bounds and shapes that MLX gives it."""
    try:
        includes = ahead.includes(Path("/none/lib/libmlx.so"), nvrtc.version())
    except FileNotFoundError:
        pytest.skip("no CUDA headers")
    options = ["--gpu-architecture=sm_90a", *(f"--include-path={include}" for include in includes)]
    made = ahead.Precompiler(nvrtc, options, ImageStore(tmp_path / "store"), tmp_path / "ptx")
    for module in (ahead, kernel):
        monkeypatch.setattr(module, "precompiler", lambda: made)
    monkeypatch.setattr(cuda_backend, "capability", lambda: 9)
    monkeypatch.setattr(launch, "_compiles", lambda header: True)
    monkeypatch.setattr(mx.fast, "cuda_kernel", lambda **kernel: None)
    launch.forget()
    quant = quant_type("Q4_K")
    with ahead.gathering() as modules:
        blocks = mx.zeros((64, quant.row_bytes(512)), mx.uint8)
        CudaBackend().multiply(mx.zeros((1, 512), mx.bfloat16), blocks, quant, True)
    launch.forget()
    (product,) = modules.values()
    compiled = nvrtc.compile(product.text, product.function, options, STAND_INS)
    assert product.function.rpartition("::")[2] in compiled.symbol
    assert b".nv.info" in compiled.image


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are found by /proc")
def test_libraries_are_found_by_how_their_files_begin(tmp_path: Path) -> None:
    library = tmp_path / "a folder" / "libinnkeeper_test.so.13"
    library.parent.mkdir()
    library.write_bytes(bytes(4096))
    assert loaded_library("libinnkeeper_test.so") is None
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert loaded_library("libinnkeeper_test.so") == str(library)
        assert loaded_library("innkeeper_test.so") is None
