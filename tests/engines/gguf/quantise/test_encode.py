"""The encoders against llama.cpp's and gguf-py's.

The golden numbers are of llama.cpp's ``llama-quantize --pure`` (build 11434), given the golden weights as one F32 tensor: the
mean squared error of its blocks, and the start of the SHA-256 of the weights they are read back as (zeros positive).
"""

from __future__ import annotations

import hashlib

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from engines.errors import UnsupportedModel
from engines.gguf.quantise import ENCODERS, quantise
from engines.gguf.quants import quant_type
from tests.engines.gguf.quantise.helpers_weights import golden_weights

GOLDEN = {
    "Q2_K": (0.0007674080442755695, "9b1475c18227d3da"),
    "Q3_K": (0.00011894401475305433, "94a56315d4c104e9"),
    "Q4_K": (3.33696678284702e-05, "5a3804da87737668"),
    "Q5_K": (8.601482381117096e-06, "5abeae148dcb398d"),
    "Q6_K": (1.825515933398058e-06, "18b0cb87d734cc13"),
    "Q4_0": (4.251854005589286e-05, "bdce6add08f723ba"),
    "Q4_1": (4.726158979147583e-05, "640d54dfa70f3373"),
    "Q5_0": (9.579634852496608e-06, "c0a833dcfa1ac397"),
    "Q5_1": (1.0545345464667618e-05, "703a8bdce98eb9ca"),
    "Q8_0": (1.7115118368972373e-07, "4c5df89f8f3ad6ea"),
    "F16": (3.078061951962601e-10, "dc48921b6ef85cdf"),
    "BF16": (1.4326950906531052e-08, "19aeb68b9cf40f90"),
}

each_type = pytest.mark.parametrize("name", ENCODERS)


def oracle(name: str, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """gguf-py's reading of the blocks."""
    read = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
    return np.asarray(read + np.float32(0))


@pytest.mark.parametrize("name", GOLDEN)
def test_quantise_finds_the_weights_of_the_reference(name: str) -> None:
    weights = golden_weights()
    assert hashlib.sha256(weights.tobytes()).hexdigest()[:16] == "00c1a0b62b723181"
    read = oracle(name, quantise(weights, name))
    error = float(np.square(read.astype(np.float64) - weights).mean())
    expected_error, expected_digest = GOLDEN[name]
    assert error == pytest.approx(expected_error, rel=0.01)
    assert hashlib.sha256(read.tobytes()).hexdigest()[:16] == expected_digest


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16"])
def test_quantise_gives_the_bytes_of_gguf_py(name: str) -> None:
    weights = np.random.default_rng(1).standard_normal((64, 512)).astype(np.float32)
    expected = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[name])
    assert quantise(weights, name).tobytes() == expected.tobytes()


@each_type
def test_quantise_is_the_same_on_any_number_of_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.gguf.quantise.encode.SEARCHED_CHUNK", 1024)
    monkeypatch.setattr("engines.gguf.quantise.encode.CHUNK", 1024)
    weights = golden_weights()[:13]
    in_pieces = quantise(weights, name, threads=3)
    monkeypatch.undo()
    assert in_pieces.tobytes() == quantise(weights, name, threads=1).tobytes()


@each_type
def test_quantise_keeps_the_leading_shape_of_any_layout(name: str) -> None:
    weights = golden_weights().reshape(4, 8, 512)
    expected = quantise(np.ascontiguousarray(weights[:, ::2]), name)
    assert expected.shape == (4, 4, quant_type(name).row_bytes(512))
    assert quantise(weights[:, ::2], name).tobytes() == expected.tobytes()


def test_quantise_reads_half_precision_as_it_is() -> None:
    half = golden_weights().astype(np.float16)
    assert quantise(half, "Q4_K").tobytes() == quantise(half.astype(np.float32), "Q4_K").tobytes()


@each_type
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_quantise_refuses_weights_that_are_not_finite(name: str, wrong: float) -> None:
    weights = golden_weights()[:2]
    weights[1, 300] = wrong
    with pytest.raises(ValueError, match="not finite"):
        quantise(weights, name)


@pytest.mark.parametrize("name", [name for name in ENCODERS if name not in ("BF16", "F32")])
def test_quantise_refuses_weights_too_large_for_its_factors(name: str) -> None:
    weights = golden_weights()[:2]
    weights[1, 300] = -1e9
    with pytest.raises(ValueError, match="too large"):
        quantise(weights, name)


def test_quantise_refuses_rows_of_part_of_a_block() -> None:
    with pytest.raises(ValueError, match="Q4_K row is whole blocks of 256 weights; 128 are not"):
        quantise(np.zeros((1, 128), np.float32), "Q4_K")


@pytest.mark.parametrize("unknown", ["IQ4_NL", "Q8_K", "q4_k"])
def test_quantise_refuses_types_that_cannot_be_written_by_name(unknown: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"{unknown} cannot be written; these can: Q2_K, Q3_K"):
        quantise(np.zeros((1, 256), np.float32), unknown)
