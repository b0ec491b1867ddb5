"""What of the CUDA back end needs no GPU: the choice of kernels, their source and their shapes."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from engines.gguf.kernels.cuda import CudaBackend, launch
from engines.gguf.kernels.cuda import backend as cuda_backend
from engines.gguf.kernels.cuda.source import header
from engines.gguf.kernels.cuda.tile import DENSE_FROM, Tile, tile_for
from engines.gguf.quants import QUANT_TYPES, QuantType, quant_type

BLOCK_TYPES = [quant for quant in QUANT_TYPES if quant.name.startswith("Q")]
Q4_K, Q6_K = map(quant_type, ("Q4_K", "Q6_K"))
SHARED_LIMIT = 227 * 1024  # bytes a thread block may have on compute capability 9


class Recorder:
    """Stands for ``mx.fast.cuda_kernel``: keeps what would be compiled and launched, and answers zeros."""

    def __init__(self) -> None:
        self.kernels: dict[str, dict[str, Any]] = {}
        self.launches: list[dict[str, Any]] = []

    def __call__(self, **kernel: Any) -> Any:
        assert kernel["name"] not in self.kernels, "two kernels of one name"
        self.kernels[kernel["name"]] = kernel

        def call(**arguments: Any) -> list[mx.array]:
            self.launches.append({"name": kernel["name"], **arguments})
            shapes, dtypes = arguments["output_shapes"], arguments["output_dtypes"]
            return [mx.zeros(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]

        return call


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(mx.fast, "cuda_kernel", made)
    monkeypatch.setattr(cuda_backend, "capability", lambda: 9)
    for cached in (launch._product, launch._gathered, launch._dequantize, launch._narrow, launch._launch):
        cached.cache_clear()
    return made


@pytest.fixture(autouse=True)
def forget_kernels() -> Any:
    yield
    for cached in (launch._product, launch._gathered, launch._dequantize, launch._narrow, launch._launch):
        cached.cache_clear()


def zeros(quant: QuantType, rows: int, columns: int) -> mx.array:
    return mx.zeros((rows, quant.row_bytes(columns)), mx.uint8)


def every_tile(quant: QuantType) -> Sequence[tuple[int, Tile]]:
    return [
        (m, tile_for(quant, rows, 4096, m, narrow=narrow, bulk=bulk))
        for rows in (16, 1024, 4096, 14336, 128256)
        for m in range(1, DENSE_FROM)
        for narrow in (False, True)
        for bulk in (False, True)
    ]


@pytest.mark.parametrize("quant", BLOCK_TYPES, ids=lambda quant: quant.name)
def test_every_tile_fits_the_device_and_its_rows(quant: QuantType) -> None:
    for m, tile in every_tile(quant):
        assert tile.shared_bytes(quant) <= SHARED_LIMIT
        assert 32 <= tile.threads <= 1024
        assert tile.narrowed in (0, 1, 8)
        assert not tile.narrowed or (tile.columns == 1 and m <= tile.narrowed)
        assert tile.stages or tile.units == 1


def test_few_columns_leave_no_warp_idle() -> None:
    assert tile_for(Q4_K, 4096, 512, 1, narrow=False).warps == 2
    assert tile_for(Q4_K, 4096, 256, 1, narrow=False).warps == 1
    assert tile_for(Q4_K, 4096, 4096, 1, narrow=False).warps == 8


def test_without_a_bulk_copy_engine_nothing_is_staged() -> None:
    assert all(tile_for(Q6_K, 4096, 4096, m, narrow=False, bulk=False).stages == 0 for m in range(1, DENSE_FROM))
    assert tile_for(Q6_K, 4096, 4096, 1, narrow=False).stages > 0


def test_source_is_whole_and_has_every_type() -> None:
    text = header()
    assert '"scalar.h"' not in text
    for quant in BLOCK_TYPES:
        assert f"struct kq_{quant.name} " in text
        assert f"kq_{quant.name.lower()}(" in text
        assert f"{quant.block_bytes}" in text


def test_one_row_and_many_take_different_kernels(recorder: Recorder) -> None:
    back_end, blocks = CudaBackend(), zeros(Q4_K, 100, 512)
    for m in (1, 8, 9, DENSE_FROM - 1):
        assert back_end.multiply(mx.zeros((m, 512), mx.float16), blocks, Q4_K, True).shape == (m, 100)
    assert len({each["name"] for each in recorder.launches}) >= 3
    assert all("kq_product<kq_Q4_K, " in kernel["source"] for kernel in recorder.kernels.values())
    back_end.multiply(mx.zeros((DENSE_FROM, 512), mx.float16), blocks, Q4_K, True)
    assert "kq_dequantize<kq_Q4_K, " in recorder.kernels[recorder.launches[-1]["name"]]["source"]


def test_leading_axes_are_kept_and_covered_by_the_grid(recorder: Recorder) -> None:
    out = CudaBackend().multiply(mx.zeros((2, 3, 512), mx.float16), zeros(Q6_K, 1003, 512), Q6_K, True)
    assert out.shape == (2, 3, 1003)
    made = recorder.launches[-1]
    assert made["grid"][0] // made["threadgroup"][0] == 63  # tiles of 16 rows
    assert made["grid"][1] == 1
    assert f"__launch_bounds__({made['threadgroup'][0]})" in recorder.kernels[made["name"]]["header"]


def test_bfloat16_is_narrowed_by_the_kernel_when_few_and_before_it_when_many(recorder: Recorder) -> None:
    blocks = zeros(Q4_K, 100, 512)
    for m, names in ((4, ["product"]), (40, ["narrow", "product"])):
        recorder.launches.clear()
        assert CudaBackend().multiply(mx.zeros((m, 512), mx.bfloat16), blocks, Q4_K, True).dtype == mx.bfloat16
        assert [each["name"].split("_")[1] for each in recorder.launches] == names
    assert recorder.launches[-1]["inputs"][0].dtype == mx.float16
    assert "16.0f" in recorder.kernels[recorder.launches[-1]["name"]]["source"]


def test_calls_of_the_same_shapes_make_one_kernel(recorder: Recorder) -> None:
    back_end, blocks = CudaBackend(), zeros(Q4_K, 100, 512)
    for _ in range(3):
        back_end.multiply(mx.zeros((1, 512), mx.float16), blocks, Q4_K, True)
    CudaBackend().multiply(mx.zeros((1, 1, 512), mx.float16), zeros(Q4_K, 90, 512), Q4_K, True)
    assert len(recorder.kernels) == 1


def test_large_matrices_are_dequantised_in_bounded_tiles(recorder: Recorder) -> None:
    back_end = CudaBackend(tile_weights=10 * 512)
    out = back_end.multiply(mx.zeros((80, 512), mx.float16), zeros(Q4_K, 25, 512), Q4_K, True)
    assert out.shape == (80, 25)
    assert [each["output_shapes"][0][0] for each in recorder.launches] == [
        10,
        5,
    ]  # the second of ten is the first again
    out = back_end.multiply(mx.zeros((2, 25), mx.float16), zeros(Q4_K, 25, 512), Q4_K, False)
    assert (out.shape, out.dtype) == ((2, 512), mx.float16)


def test_float32_goes_the_portable_way(recorder: Recorder) -> None:
    x = mx.random.normal((2, 512), key=mx.random.key(1))
    assert CudaBackend().multiply(x, zeros(Q4_K, 20, 512), Q4_K, True).shape == (2, 20)
    assert not recorder.launches


def test_nothing_times_something_is_empty_or_zero(recorder: Recorder) -> None:
    assert CudaBackend().multiply(mx.zeros((0, 512), mx.float16), zeros(Q4_K, 20, 512), Q4_K, True).shape == (0, 20)
    assert not recorder.launches


def test_what_does_not_fit_is_refused(recorder: Recorder) -> None:
    back_end, blocks = CudaBackend(), zeros(Q4_K, 20, 512)
    with pytest.raises(ValueError, match="do not fit"):
        back_end.multiply(mx.zeros((2, 256), mx.float16), blocks, Q4_K, True)
    with pytest.raises(ValueError, match="do not fit"):
        back_end.multiply(mx.zeros((2, 512), mx.float16), blocks, Q4_K, False)
    with pytest.raises(ValueError, match="must be floating"):
        back_end.multiply(mx.zeros((2, 512), mx.int32), blocks, Q4_K, True)
    with pytest.raises(ValueError, match="must be uint8"):
        back_end.multiply(mx.zeros((2, 512), mx.float16), blocks.astype(mx.int32), Q4_K, True)


def test_experts_are_grouped_only_when_there_are_many(recorder: Recorder) -> None:
    blocks = mx.zeros((4, 32, Q4_K.row_bytes(512)), mx.uint8)
    for pairs, blocks_of_pairs in ((8, 8), (320, 10)):
        experts = mx.zeros((pairs,), mx.uint32)
        out = CudaBackend().multiply_experts(mx.zeros((pairs, 512), mx.float16), blocks, Q4_K, experts, 1)
        assert out is not None and out.shape == (pairs, 32)
        assert recorder.launches[-1]["grid"][1] == blocks_of_pairs


def test_rows_are_read_by_id(recorder: Recorder) -> None:
    out = CudaBackend().rows(zeros(Q6_K, 20, 512), mx.array([[1, 2], [3, 4]]), Q6_K, mx.bfloat16)
    assert (out.shape, out.dtype) == ((2, 2, 512), mx.bfloat16)
    assert recorder.launches[-1]["inputs"][1].shape == (4,)
    assert CudaBackend().rows(zeros(Q6_K, 20, 512), mx.array([1]), Q6_K, mx.float32).dtype == mx.float32
    assert len(recorder.launches) == 1


def test_available_only_on_a_gpu_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_backend, "capability", lambda: 7)
    assert not CudaBackend().available()
    monkeypatch.setattr(cuda_backend, "capability", lambda: 8)
    on_gpu = mx.default_device().type == mx.DeviceType.gpu
    assert CudaBackend().available() == on_gpu
