"""What of the Metal back end needs no Apple GPU: its choices, its sources, mlx-kquant's contract, and repacking."""

import sys
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engines.gguf.kernels.metal import MetalBackend, kernels
from engines.gguf.kernels.metal.library import KQuantLibrary, find_library
from engines.gguf.kernels.metal.repack import repack
from engines.gguf.quants import QUANT_TYPES, BlockType, quant_type
from tests.engines.gguf.helpers_blocks import random_blocks

BLOCK_TYPES = [quant for quant in QUANT_TYPES if isinstance(quant, BlockType)]
EXACT = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_XXS"),
    *("IQ1_S", "TQ1_0", "TQ2_0", "MXFP4"),
)
Q4_K = quant_type("Q4_K")


def library(**faults: Any) -> ModuleType:
    """Does what mlx-kquant documents, on the portable path, but for ``faults``."""
    module: Any = ModuleType("mlx_kquant")
    module.codecs = lambda: faults.get("codecs", [quant.name.lower() for quant in BLOCK_TYPES])

    def dequantize(w: mx.array, scales: mx.array, kquant_type: str, dtype: mx.Dtype = mx.float16) -> mx.array:
        out: mx.array = quant_type(kquant_type.upper()).dequantize(w).astype(faults.get("dequantized", dtype))
        return out

    def quantized_matmul(
        x: mx.array, w: mx.array, scales: mx.array, kquant_type: str, transpose: bool = True
    ) -> mx.array:
        weights = quant_type(kquant_type.upper()).dequantize(w) * faults.get("factor", 1)
        out = x.astype(mx.float32) @ (weights.T if transpose else weights)
        product: mx.array = out.astype(faults.get("product", mx.bfloat16 if x.dtype == mx.float32 else x.dtype))
        return product

    module.dequantize, module.quantized_matmul = dequantize, quantized_matmul
    made: ModuleType = module
    return made


@pytest.mark.parametrize("quant", BLOCK_TYPES, ids=lambda quant: quant.name)
def test_a_library_that_keeps_its_contract_is_used(quant: BlockType) -> None:
    assert KQuantLibrary(library()).takes(quant)


@pytest.mark.parametrize(
    "faults", [{"codecs": ["q6_k"]}, {"dequantized": mx.float16}, {"product": mx.float32}, {"factor": 1.01}]
)
def test_one_that_breaks_it_is_not(faults: dict[str, Any]) -> None:
    assert not KQuantLibrary(library(**faults)).takes(Q4_K)


def test_library_is_found_only_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_library("no_such_package_of_kernels") is None
    half = library()
    del half.quantized_matmul
    monkeypatch.setitem(sys.modules, "mlx_kquant", half)
    assert find_library() is None
    monkeypatch.setitem(sys.modules, "mlx_kquant", library())
    assert find_library() is not None


def test_halves_go_to_the_library_and_float32_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx_kquant", library())
    blocks = mx.array(random_blocks(Q4_K, 20, 512))
    weights = Q4_K.dequantize(blocks)
    for dtype, bound in ((mx.float16, 2e-3), (mx.bfloat16, 1e-2), (mx.float32, 1e-5)):
        x = mx.random.normal((3, 512), key=mx.random.key(1)).astype(dtype)
        out = MetalBackend().multiply(x, blocks, Q4_K, True)
        assert out.dtype == dtype
        expected = x.astype(mx.float32) @ weights.T
        assert mx.linalg.norm(out.astype(mx.float32) - expected) < bound * mx.linalg.norm(expected)


def test_own_kernels_cover_every_row_and_column(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[dict[str, Any]] = []
    sources: list[str] = []

    def metal_kernel(**kernel: Any) -> Any:
        sources.append(kernel["header"] + kernel["source"])

        def call(**arguments: Any) -> list[mx.array]:
            launches.append({"name": kernel["name"], **arguments})
            return [mx.zeros(arguments["output_shapes"][0], arguments["output_dtypes"][0])]

        return call

    monkeypatch.setattr(mx.fast, "metal_kernel", metal_kernel)
    monkeypatch.setattr(MetalBackend, "_find", lambda self: None)
    kernels._kernel.cache_clear()
    blocks, back_end = mx.array(random_blocks(Q4_K, 21, 512)), MetalBackend(tile_weights=10 * 512)
    assert back_end.multiply(mx.zeros((1, 512), mx.float16), blocks, Q4_K, True).shape == (1, 21)
    assert back_end.multiply(mx.zeros((8, 512), mx.float16), blocks, Q4_K, True).shape == (8, 21)
    assert [dict(each["template"])["ROWS"] for each in launches] == [1, 8]
    assert launches[0]["grid"][0] >= 21 * 32
    launches.clear()
    assert back_end.multiply(mx.zeros((9, 512), mx.float16), blocks, Q4_K, True).shape == (9, 21)
    assert [each["grid"][:2] for each in launches] == [(512, 10), (512, 10), (512, 1)]
    assert back_end.multiply(mx.zeros((2, 21), mx.float16), blocks, Q4_K, False).shape == (2, 512)
    for source in sources:
        assert "kq_q4_k(" in source
        assert not {"READ", "BLOCK_BYTES", "BLOCK_SIZE"} & set(source.replace("(", " ").replace("/", " ").split())
    kernels._kernel.cache_clear()


@pytest.mark.parametrize("name", EXACT)
def test_repacked_with_float32_scales_is_exact(name: str) -> None:
    quant = quant_type(name)
    assert isinstance(quant, BlockType)
    raw = random_blocks(quant, 9, 512)
    got = np.array(repack(mx.array(raw), quant, mx.float32).dequantize()).astype(np.float64)
    weights = quant.dequantize_numpy(raw).astype(np.float64)
    assert np.linalg.norm(got - weights) < 1e-6 * np.linalg.norm(weights)


@pytest.mark.parametrize("quant", BLOCK_TYPES, ids=lambda quant: quant.name)
def test_repacked_with_float16_scales_is_near_lossless(quant: BlockType) -> None:
    raw = random_blocks(quant, 9, 512)
    affine = repack(mx.array(raw), quant)
    got = np.array(affine.dequantize()).astype(np.float64)
    weights = quant.dequantize_numpy(raw).astype(np.float64)
    # Codes that are kept lose their scales' rounding alone; groups of 16 in one of 32 lose up to half a step of the coarser.
    bound = 1e-3 if quant.name in EXACT else 1.2e-2
    assert np.linalg.norm(got - weights) < bound * np.linalg.norm(weights)
    assert affine.nbytes * 8 / weights.size == affine.bits + 1


def test_repacked_weights_multiply_either_way() -> None:
    assert isinstance(Q4_K, BlockType)
    raw = random_blocks(Q4_K, 64, 512)
    affine, weights = repack(mx.array(raw), Q4_K, mx.float32), Q4_K.dequantize(mx.array(raw))
    x = mx.random.normal((3, 512), key=mx.random.key(1))
    assert mx.allclose(affine.multiply(x, True), x @ weights.T, rtol=1e-4, atol=1e-3)
    assert mx.allclose(affine.multiply(x[:, :64], False), x[:, :64] @ weights, rtol=1e-4, atol=1e-3)


def test_not_available_without_an_apple_gpu() -> None:
    assert MetalBackend().available() == (mx.metal.is_available() and mx.default_device().type == mx.DeviceType.gpu)
