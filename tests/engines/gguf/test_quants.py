from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as reference

from engines.errors import UnsupportedModel
from engines.gguf.quants import QUANT_TYPES, QuantType, quant_type
from engines.gguf.quants.lookup import grid
from tests.engines.gguf.helpers_blocks import HALVES, put_nibbles, random_blocks

each_type = pytest.mark.parametrize("quant", QUANT_TYPES, ids=lambda quant: quant.name)


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return left.dtype == right.dtype == np.float32 and np.array_equal(left.view(np.uint32), right.view(np.uint32))


@each_type
def test_quant_type_has_the_sizes_of_the_format(quant: QuantType) -> None:
    ggml = GGMLQuantizationType[quant.name]
    assert quant.ggml_id == ggml.value
    assert (quant.block_size, quant.block_bytes) == GGML_QUANT_SIZES[ggml]
    assert quant_type(quant.name) is quant_type(ggml) is quant_type(quant.ggml_id) is quant


@each_type
@pytest.mark.parametrize("seed", range(3))
def test_dequantize_gives_the_reference_bits_on_random_blocks(quant: QuantType, seed: int) -> None:
    rows = random_blocks(quant, 7 + seed, 768, seed=seed)
    expected = reference(rows, GGMLQuantizationType[quant.name])
    assert same_bits(quant.dequantize_numpy(rows), expected)
    assert same_bits(np.array(quant.dequantize(mx.array(rows))), expected)


@each_type
def test_dequantize_keeps_the_leading_shape(quant: QuantType) -> None:
    rows = random_blocks(quant, (2, 3), 512)
    expected = reference(rows, GGMLQuantizationType[quant.name])
    assert expected.shape == (2, 3, 512)
    assert same_bits(quant.dequantize_numpy(rows), expected)
    assert same_bits(np.array(quant.dequantize(mx.array(rows))), expected)


@each_type
def test_dequantize_reads_rows_that_are_not_contiguous(quant: QuantType) -> None:
    rows = random_blocks(quant, 8, 512)
    expected = quant.dequantize_numpy(np.ascontiguousarray(rows[::2]))
    assert same_bits(quant.dequantize_numpy(rows[::2]), expected)
    assert same_bits(np.array(quant.dequantize(mx.array(rows)[::2])), expected)


@pytest.mark.parametrize("name", [*HALVES, "F16"])
def test_dequantize_reads_every_finite_float16_factor(name: str) -> None:
    """Subnormals and both zeros too: 65536 patterns in the place of each factor, NaN and infinity left out."""
    quant = quant_type(name)
    patterns = np.arange(65536, dtype=np.uint16)
    patterns = patterns[(patterns & 0x7C00) != 0x7C00]
    if quant.name == "F16":
        rows = patterns.view(np.uint8).reshape(1, -1)
    else:
        patterns = np.ascontiguousarray(patterns[:: 1 if quant.block_size == 32 else 8])
        rows = random_blocks(quant, len(patterns), quant.block_size)
        for at in HALVES[quant.name]:
            rows[:, at : at + 2] = patterns.view(np.uint8).reshape(-1, 2)
    expected = reference(rows, GGMLQuantizationType[quant.name])
    assert same_bits(quant.dequantize_numpy(rows), expected)
    assert same_bits(np.array(quant.dequantize(mx.array(rows))), expected)


def test_dequantize_reads_every_scale_that_is_no_float16() -> None:
    """MXFP4's exponents and NVFP4's bytes, all 256, and the float16 that IQ1_M has in pieces; infinities are the reference's."""
    mxfp4, nvfp4, iq1_m = map(quant_type, ("MXFP4", "NVFP4", "IQ1_M"))
    exponents = random_blocks(mxfp4, 256, 32)
    exponents[:, 0] = np.arange(256)
    bytes_ = random_blocks(nvfp4, 256, 64)
    bytes_[:, :4] = np.arange(1024).reshape(256, 4)
    patterns = np.arange(0, 65536, 7, dtype=np.uint16)
    pieces = random_blocks(iq1_m, len(patterns), 256)
    put_nibbles(pieces, patterns.view(np.float16))
    pieces = pieces[(patterns & 0x7C00) != 0x7C00]
    for quant, rows in ((mxfp4, exponents), (nvfp4, bytes_), (iq1_m, pieces)):
        with np.errstate(over="ignore"):
            expected = reference(rows, GGMLQuantizationType[quant.name])
            assert same_bits(quant.dequantize_numpy(rows), expected)
        assert same_bits(np.array(quant.dequantize(mx.array(rows))), expected)


@pytest.mark.parametrize(
    ("name", "entries"),
    [("iq2_xxs", 256), ("iq2_xs", 512), ("iq2_s", 1024), ("iq1", 2048), ("iq3_xxs", 256), ("iq3_s", 512)],
)
def test_grids_are_those_of_the_format(name: str, entries: int) -> None:
    """Every entry, most of which random blocks do not reach."""
    kind: Any = getattr(gguf.quants, name.upper().replace("IQ1", "IQ1_S"))
    kind.init_grid()
    assert np.array_equal(grid(name), kind.grid.reshape(entries, -1))


@each_type
def test_rows_of_part_of_a_block_are_refused(quant: QuantType) -> None:
    bad = quant.block_bytes + 1
    with pytest.raises(ValueError, match=quant.name):
        quant.columns(bad)
    with pytest.raises(ValueError, match=quant.name):
        quant.dequantize_numpy(np.zeros((1, bad), np.uint8))
    with pytest.raises(ValueError, match=quant.name):
        quant.dequantize(mx.zeros((1, bad), mx.uint8))
    assert quant.columns(quant.row_bytes(4 * quant.block_size)) == 4 * quant.block_size


def test_row_bytes_of_part_of_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="Q4_K"):
        quant_type("Q4_K").row_bytes(128)


@pytest.mark.parametrize("unknown", ["Q8_1", 15, "q4_k"])
def test_unsupported_type_is_refused_by_name(unknown: str | int) -> None:
    with pytest.raises(UnsupportedModel, match=rf"{unknown} is not supported; supported are Q2_K, Q3_K"):
        quant_type(unknown)
