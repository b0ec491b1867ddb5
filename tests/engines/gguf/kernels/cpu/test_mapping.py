"""Arrays over the pages of a file."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from engines.gguf.kernels.cpu import Extension
from engines.gguf.tensors import TensorFile
from engines.header import read_header
from tests.engines.gguf.helpers_tiny import tiny_model


def test_bytes_are_the_files_and_outlive_it(compiled: Extension, tmp_path: Path) -> None:
    path = tmp_path / "data"
    content = np.random.default_rng(0).integers(0, 256, 20_000, dtype=np.uint8)
    path.write_bytes(content.tobytes())
    with path.open("rb") as file:
        mapped = compiled.Mapping.of_file(file.fileno())
    path.unlink()
    part = mapped.bytes(32, [30, 100])
    del mapped
    np.testing.assert_array_equal(part, content[32:3032].reshape(30, 100))
    np.testing.assert_array_equal(part[5:7].view(mx.uint32), content[532:732].view(np.uint32).reshape(2, 25))


@pytest.mark.parametrize(("offset", "shape"), [(0, [8]), (4, [4]), (90, [11]), (101, [0]), (8, [1 << 20, 1 << 20])])
def test_bytes_outside_the_file_are_refused(compiled: Extension, tmp_path: Path, offset: int, shape: list[int]) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(100))
    with path.open("rb") as file:
        mapped = compiled.Mapping.of_file(file.fileno())
    with pytest.raises(ValueError, match="within the file"):
        mapped.bytes(offset, shape)


def test_a_file_that_cannot_be_mapped_is_an_os_error(compiled: Extension) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        compiled.Mapping.of_file(-1)


def test_operations_never_write_to_the_file(compiled: Extension, tmp_path: Path) -> None:
    """MLX may compute in place in memory of its own, so an array over a file must not look like that."""
    path = tmp_path / "data"
    path.write_bytes(np.arange(512, dtype=np.float32).tobytes())
    with path.open("rb") as file:
        mapped = compiled.Mapping.of_file(file.fileno())
    numbers = mapped.bytes(1024, [1024]).view(mx.float32)
    del mapped
    result = mx.exp(numbers * 0.0)
    del numbers
    result = result + 1.0
    mx.eval(result)
    assert np.array(result).tolist() == [2.0] * 256
    np.testing.assert_array_equal(np.fromfile(path, np.float32), np.arange(512, dtype=np.float32))


def test_tensors_take_no_memory_of_their_own(compiled: Extension, tmp_path: Path) -> None:
    path = tiny_model("llama", quant="Q4_K").write(tmp_path / "tiny.gguf")
    before = mx.get_active_memory()
    header = read_header(path)
    with TensorFile(header) as tensors:
        kept = [tensors.blocks(name) for name in header.tensors]
    assert mx.get_active_memory() == before
    assert sum(array.nbytes for array in kept) > 100_000
