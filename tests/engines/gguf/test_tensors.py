import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter

from engines.errors import CheckpointError, UnsupportedModel
from engines.gguf.quants import QUANT_TYPES, QuantType, quant_type
from engines.gguf.tensors import TensorFile
from engines.header import read_header
from tests.engines.gguf.helpers_blocks import random_blocks


def write(path: Path, **tensors: tuple[str, np.ndarray]) -> Path:
    """A GGUF file of these tensors: name → (quant type, its blocks)."""
    writer = GGUFWriter(path, "test")
    for name, (type_name, data) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[type_name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("quant", QUANT_TYPES, ids=lambda quant: quant.name)
def test_blocks_are_the_bytes_of_the_file(tmp_path: Path, quant: QuantType) -> None:
    first, second = random_blocks(quant, 6, 512, seed=1), random_blocks(quant, (2, 3), 256, seed=2)
    path = write(tmp_path / "a.gguf", first=(quant.name, first), second=(quant.name, second))
    with TensorFile(read_header(path)) as tensors:
        assert tensors.quant("first") is quant
        got_first, got_second = tensors.blocks("first"), tensors.blocks("second")
        again = tensors.blocks("first")
    assert got_first.dtype == mx.uint8
    assert np.array_equal(np.array(got_first), first)
    assert np.array_equal(np.array(got_second), second)
    assert np.array_equal(np.array(again), first)


@pytest.mark.parametrize(("name", "dtype"), [("F32", mx.float32), ("F16", mx.float16), ("BF16", mx.bfloat16)])
def test_floats_come_in_their_own_dtype(tmp_path: Path, name: str, dtype: mx.Dtype) -> None:
    quant = quant_type(name)
    vector, matrix = random_blocks(quant, 1, 7)[0], random_blocks(quant, 3, 5)
    with TensorFile(read_header(write(tmp_path / "a.gguf", vector=(name, vector), matrix=(name, matrix)))) as tensors:
        got_vector, got_matrix = tensors.floats("vector"), tensors.floats("matrix")
    assert (got_vector.dtype, got_vector.shape) == (dtype, (7,))
    assert (got_matrix.dtype, got_matrix.shape) == (dtype, (3, 5))
    assert np.array_equal(np.array(got_matrix.astype(mx.float32)), quant.dequantize_numpy(matrix))


def test_floats_of_a_quantised_tensor_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", weight=("Q4_K", random_blocks(quant_type("Q4_K"), 2, 256)))
    with TensorFile(read_header(path)) as tensors, pytest.raises(UnsupportedModel, match="weight is Q4_K"):
        tensors.floats("weight")


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", weight=("F32", np.zeros((2, 4), np.float32)))
    with TensorFile(read_header(path)) as tensors, pytest.raises(CheckpointError, match=r"a\.gguf has no tensor bias"):
        tensors.blocks("bias")


def test_unsupported_type_names_tensor_and_type(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", weight=("Q8_1", np.zeros((2, 40), np.uint8)))
    with TensorFile(read_header(path)) as tensors, pytest.raises(UnsupportedModel, match="weight: quant type Q8_1"):
        tensors.blocks("weight")


def test_file_that_changed_since_its_header_was_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", weight=("F32", np.zeros((2, 4), np.float32)))
    header = read_header(path)
    os.utime(path, ns=(1, 1))
    with TensorFile(header) as tensors, pytest.raises(CheckpointError, match="changed while it was being loaded"):
        tensors.blocks("weight")


def test_file_that_is_gone_is_an_error_with_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", weight=("F32", np.zeros((2, 4), np.float32)))
    header = read_header(path)
    path.unlink()
    with TensorFile(header) as tensors, pytest.raises(CheckpointError, match=r"a\.gguf cannot be read"):
        tensors.blocks("weight")


MEASURE = """
import sys
from pathlib import Path
import mlx.core as mx
from engines.gguf.tensors import TensorFile
from engines.header import read_header

def resident():
    fields = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(fields[name].split()[0]) for name in ("Anonymous", "Pss_File")) * 1024

mx.eval(mx.zeros(1))
header = read_header(sys.argv[1])
empty = resident()
with TensorFile(header) as tensors:
    kept = [tensors.blocks(name) for name in header.tensors]
    print(header.file_bytes, empty, resident())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps_rollup")
def test_loaded_tensors_are_resident_once(gemma_path: Path) -> None:
    """The mapping is still open when memory is read, so its pages would show."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(gemma_path)], check=True, capture_output=True, text=True, timeout=120
    )
    file_bytes, empty, loaded = map(int, done.stdout.split())
    assert loaded < 1.15 * file_bytes + empty
    assert loaded > 0.9 * file_bytes
