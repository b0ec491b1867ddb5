"""A kernel's text and module as MLX makes them. The golden text is what MLX 0.32.4's CUDA build printed and hashed."""

from importlib import metadata
from pathlib import Path

import mlx.core as mx
import pytest

from engines.gguf.kernels.cuda.mlx_module import VERSIONS, Argument, module_folder, module_of

INPUTS = [
    Argument("x", mx.bfloat16, is_scalar=False),
    Argument("b", mx.uint8, is_scalar=False),
    Argument("c", mx.float16, is_scalar=False),
]
OUTPUTS = [("out", mx.int32), ("o2", mx.uint32)]
BODY = "out[0]=x_shape[0]+x_ndim+c_strides[0];"
TEXT = """
#include "mlx/backend/cuda/device/utils.cuh"

#include <cooperative_groups.h>

// hdr
namespace mlx::core::cu {

namespace cg = cooperative_groups;

__global__ void custom_kernel_foo(
    const __nv_bfloat16* x,
    const __grid_constant__ Shape x_shape,
    const __grid_constant__ int x_ndim,
    const uint8_t* b,
    const __half* c,
    const __grid_constant__ Strides c_strides,
    int32_t* out,
    uint32_t* o2) {
out[0]=x_shape[0]+x_ndim+c_strides[0];
}

} // namespace mlx::core::cu
"""


def test_the_mlx_that_is_installed_is_one_whose_text_is_known() -> None:
    """After an upgrade: print a kernel's text (``verbose=True``) on CUDA, compare, and add the version."""
    assert metadata.version("mlx") in VERSIONS


def test_text_and_name_are_those_of_mlx() -> None:
    module = module_of("foo", "// hdr\n", BODY, INPUTS, OUTPUTS)
    if module is None:
        pytest.skip("no libstdc++ here")
    assert module.text == TEXT
    assert module.name == "custom_kernel_foo_e8f675af5f778392"
    assert module.function == "mlx::core::cu::custom_kernel_foo"


def test_an_array_without_axes_has_no_shape() -> None:
    module = module_of("foo", "", "x_shape", [Argument("x", mx.float32, is_scalar=True)], OUTPUTS)
    assert module is None or "Shape" not in module.text


def test_what_is_not_known_is_left_to_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module_of("foo", "", "", [Argument("x", mx.complex64, is_scalar=False)], OUTPUTS) is None
    assert module_of("f" * 200, "", "", INPUTS, OUTPUTS) is None
    monkeypatch.setattr("engines.gguf.kernels.cuda.mlx_module._version", lambda: "0.99.0")
    assert module_of("foo", "", "", INPUTS, OUTPUTS) is None


def test_modules_lie_where_mlx_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLX_PTX_CACHE_DIR", "TMPDIR", "TMP", "TEMP", "TEMPDIR"):
        monkeypatch.delenv(name, raising=False)
    folder = Path("mlx") / metadata.version("mlx") / "ptx"
    assert module_folder() == Path("/tmp") / folder
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert module_folder() == Path("/elsewhere") / folder
    monkeypatch.setenv("MLX_PTX_CACHE_DIR", "/given")
    assert module_folder() == Path("/given")
