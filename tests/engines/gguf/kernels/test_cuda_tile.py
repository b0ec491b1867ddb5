"""What of the CUDA back end needs no GPU: the choice of kernels, their source and their shapes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from engines.gguf.kernels.cuda import CudaBackend, launch, source
from engines.gguf.kernels.cuda import backend as cuda_backend
from engines.gguf.kernels.cuda.tile import DENSE_FROM, Tile, gated_tile, tile_for
from engines.gguf.quants import QUANT_TYPES, BlockType, QuantType, quant_type

BLOCK_TYPES = [quant for quant in QUANT_TYPES if isinstance(quant, BlockType)]
Q4_K, Q6_K = map(quant_type, ("Q4_K", "Q6_K"))
SHARED_LIMIT = 227 * 1024  # bytes a thread block may have on compute capability 9


class Recorder:
    """Stands for ``mx.fast.cuda_kernel``: keeps what would be compiled and launched, and answers zeros. The probe, which asks
    whether files can be included, is kept apart; it fails when there is no ``reach``."""

    def __init__(self) -> None:
        self.kernels: dict[str, dict[str, Any]] = {}
        self.launches: list[dict[str, Any]] = []
        self.probes: list[dict[str, Any]] = []
        self.reach = True

    def __call__(self, **kernel: Any) -> Any:
        assert kernel["name"] not in self.kernels, "two kernels of one name"
        probe = kernel["name"].endswith("_probe")
        if probe:
            self.probes.append(kernel)
        else:
            self.kernels[kernel["name"]] = kernel

        def call(**arguments: Any) -> list[mx.array]:
            if not probe:
                self.launches.append({"name": kernel["name"], **arguments})
            elif not self.reach:
                raise RuntimeError("Failed to compile kernel: cannot open source file")
            shapes, dtypes = arguments["output_shapes"], arguments["output_dtypes"]
            return [mx.zeros(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]

        return call


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(mx.fast, "cuda_kernel", made)
    monkeypatch.setattr(cuda_backend, "capability", lambda: 9)
    launch.forget()
    return made


@pytest.fixture(autouse=True)
def forget_kernels() -> Any:
    yield
    launch.forget()


def zeros(quant: QuantType, rows: int, columns: int) -> mx.array:
    return mx.zeros((rows, quant.row_bytes(columns)), mx.uint8)


def every_tile(quant: QuantType) -> Sequence[tuple[int, Tile]]:
    return [
        (m, choose(quant, rows, columns, m, narrow=narrow, bulk=bulk))
        for choose in (tile_for, gated_tile)
        for rows in (16, 1024, 4096, 14336, 128256)
        for columns in (256, 4096)
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


@pytest.mark.parametrize("quant", BLOCK_TYPES, ids=lambda quant: quant.name)
def test_a_gated_tile_has_a_warp_of_each_matrix_for_the_same_rows(quant: QuantType) -> None:
    for m in range(1, DENSE_FROM):
        assert gated_tile(quant, 14336, 4096, m, narrow=False).members % 2 == 0


def test_few_columns_leave_no_warp_idle() -> None:
    assert tile_for(Q4_K, 4096, 512, 1, narrow=False).parties == 2
    assert tile_for(Q4_K, 4096, 256, 1, narrow=False).parties == 1
    assert tile_for(Q4_K, 4096, 4096, 1, narrow=False).parties == 8


def test_without_a_bulk_copy_engine_nothing_is_staged() -> None:
    assert all(tile_for(Q6_K, 4096, 4096, m, narrow=False, bulk=False).stages == 0 for m in range(1, DENSE_FROM))
    assert tile_for(Q6_K, 4096, 4096, 1, narrow=False).stages > 0


def test_source_is_whole_and_has_every_type() -> None:
    text = source.whole()
    assert '#include "' not in text
    for quant in BLOCK_TYPES:
        assert f"struct kq_{quant.name} " in text
        name = quant.name.lower()
        assert f"kq_{name}(" in text or f"KQ_SCALAR({name}, {quant.block_size}, {quant.block_bytes})" in text
        assert f"{quant.block_bytes}" in text


def test_included_source_is_a_line_that_names_files_and_changes_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    line = source.included()
    assert line is not None and line.count("\n") == 1
    named = Path(line.split('"')[1])
    assert named.is_file() and named.is_absolute()
    monkeypatch.setattr(source, "whole", lambda: "other source")
    source.digest.cache_clear()
    changed = source.included()
    source.digest.cache_clear()
    assert changed is not None and changed != line


@pytest.mark.parametrize("name", ['a "quoted" folder', "a\nline", "a\\b"])
def test_a_folder_that_no_include_can_name_is_not_included(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(source, "files", lambda package: tmp_path / name)
    assert source.included() is None


def test_kernels_carry_little_text_where_files_can_be_included(recorder: Recorder) -> None:
    back_end = CudaBackend()
    for m in (1, 8):
        back_end.multiply(mx.zeros((m, 512), mx.float16), zeros(Q4_K, 100, 512), Q4_K, True)
    assert len(recorder.probes) == 1, "asked once"
    assert len(recorder.kernels) == 2
    for kernel in recorder.kernels.values():
        assert len(kernel["header"]) + len(kernel["source"]) < 1000
        assert source.digest() in kernel["name"]


def test_kernels_carry_their_source_where_the_compiler_cannot_read_the_files(recorder: Recorder) -> None:
    recorder.reach = False
    back_end = CudaBackend()
    for m in (1, 8):
        back_end.multiply(mx.zeros((m, 512), mx.float16), zeros(Q4_K, 100, 512), Q4_K, True)
    assert len(recorder.probes) == 1, "asked once"
    assert all(kernel["header"].startswith(source.whole()) for kernel in recorder.kernels.values())


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
    tile = tile_for(Q6_K, 1003, 512, 6, narrow=False)
    assert made["threadgroup"][0] == tile.threads
    assert made["grid"][0] // tile.threads * tile.height in range(1003, 1003 + tile.height)
    assert made["grid"][1] == 1
    assert f"__launch_bounds__({made['threadgroup'][0]})" in recorder.kernels[made["name"]]["header"]


def test_bfloat16_is_narrowed_by_the_kernel_when_few_and_before_it_when_many(recorder: Recorder) -> None:
    back_end, blocks = CudaBackend(), zeros(Q4_K, 100, 512)
    calls: dict[str, Callable[[mx.array], Any]] = {
        "product": lambda x: back_end.multiply(x, blocks, Q4_K, True),
        "gated": lambda x: back_end.multiply_gated(x, blocks, blocks, Q4_K, "silu"),
        "joined2": lambda x: (back_end.multiply_joined(x, [blocks, blocks], Q4_K) or [None])[0],
    }
    for more, (kind, call) in enumerate(calls.items()):  # a shape is recorded once
        for m, names in ((4 + more, [kind]), (40 + more, ["narrow", kind])):
            recorder.launches.clear()
            assert call(mx.zeros((m, 512), mx.bfloat16)).dtype == mx.bfloat16
            assert [each["name"].split("_")[2] for each in recorder.launches] == names
        assert recorder.launches[-1]["inputs"][0].dtype == mx.float16
        assert "16.0f" in recorder.kernels[recorder.launches[-1]["name"]]["source"]


def test_gate_and_up_projection_are_one_launch_for_few_rows(recorder: Recorder) -> None:
    back_end, blocks = CudaBackend(), zeros(Q4_K, 1003, 512)
    out = back_end.multiply_gated(mx.zeros((2, 3, 512), mx.bfloat16), blocks, blocks, Q4_K, "gelu_tanh")
    assert out is not None and (out.shape, out.dtype) == ((2, 3, 1003), mx.bfloat16)
    (made,) = recorder.launches
    tile = gated_tile(Q4_K, 1003, 512, 6, narrow=True)
    assert made["grid"][0] // tile.threads * tile.height // 2 in range(1003, 1003 + tile.height)
    assert ", kq_gelu_tanh>" in recorder.kernels[made["name"]]["source"]


def test_gate_and_up_projection_without_a_kernel_for_both_are_left_to_the_model(recorder: Recorder) -> None:
    back_end, blocks = CudaBackend(), zeros(Q4_K, 100, 512)
    for x in (mx.zeros((DENSE_FROM, 512), mx.float16), mx.zeros((1, 512), mx.float32), mx.zeros((0, 512), mx.float16)):
        assert back_end.multiply_gated(x, blocks, blocks, Q4_K, "silu") is None
    x = mx.zeros((1, 512), mx.float16)
    assert back_end.multiply_gated(x, blocks, zeros(Q4_K, 96, 512), Q4_K, "silu") is None
    dense = mx.zeros((100, 1024), mx.uint8)
    assert back_end.multiply_gated(x, dense, dense, quant_type("F16"), "silu") is None
    assert not recorder.launches
    with pytest.raises(ValueError, match="do not fit"):
        back_end.multiply_gated(mx.zeros((1, 256), mx.float16), blocks, blocks, Q4_K, "silu")


def test_several_matrices_are_one_launch_whose_grid_covers_each(recorder: Recorder) -> None:
    back_end, matrices = CudaBackend(), [zeros(Q6_K, rows, 512) for rows in (1003, 17, 64)]
    for count in (2, 3):
        recorder.launches.clear()
        out = back_end.multiply_joined(mx.zeros((2, 3, 512), mx.bfloat16), matrices[:count], Q6_K)
        assert out is not None and [each.shape for each in out] == [(2, 3, 1003), (2, 3, 17), (2, 3, 64)][:count]
        (made,) = recorder.launches
        kernel = recorder.kernels[made["name"]]
        tile = tile_for(Q6_K, 1020 if count == 2 else 1084, 512, 6, narrow=True)
        tiles = sum(-(-rows // tile.height) for rows in (1003, 17, 64)[:count])
        assert made["grid"][0] == tiles * made["threadgroup"][0]
        assert kernel["output_names"] == ["out", "out2", "out3"][:count]
        assert all(f"{each}_shape[0]" in kernel["source"] for each in ("first", "second", "third")[:count])


def test_several_matrices_without_a_kernel_for_them_are_left_to_the_model(recorder: Recorder) -> None:
    back_end, blocks = CudaBackend(), [zeros(Q4_K, 100, 512)] * 2
    for x in (mx.zeros((DENSE_FROM, 512), mx.float16), mx.zeros((1, 512), mx.float32)):
        assert back_end.multiply_joined(x, blocks, Q4_K) is None
    assert back_end.multiply_joined(mx.zeros((1, 512), mx.float16), blocks * 2, Q4_K) is None
    assert not recorder.launches
    with pytest.raises(ValueError, match="do not fit"):
        back_end.multiply_joined(mx.zeros((1, 512), mx.float16), [blocks[0], zeros(Q4_K, 100, 256)], Q4_K)


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
