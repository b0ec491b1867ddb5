"""The checkpoint writer, read back by our header reader and by gguf-py's."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from engines.gguf.quants import quant_type
from engines.gguf.writer import CheckpointValue, write_checkpoint
from engines.header import GgufArray, read_header
from tests.engines.gguf.helpers_blocks import random_blocks
from tests.engines.gguf.helpers_tiny import FAMILIES, tiny_gguf

METADATA: dict[str, CheckpointValue] = {
    "x.flag": True,
    "x.count": 7,
    "x.negative": -7,
    "x.large": 1 << 40,
    "x.ratio": 0.5,
    "x.name": "näme",
    "x.words": ["a", "b"],
    "x.numbers": [1, 2, 3],
    "x.ratios": [0.5, 0.25],
}


def test_metadata_is_read_back(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "x.gguf", "x", METADATA, {"t": ("F32", np.ones(4, np.float32))})
    metadata = read_header(path).metadata
    assert metadata["general.architecture"] == "x"
    assert metadata["general.quantization_version"] == 2
    for key, value in METADATA.items():
        read = metadata[key]
        assert (read.tolist() if isinstance(read, GgufArray) else read) == value


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "F16", "BF16"])
def test_blocks_are_read_back(name: str, tmp_path: Path) -> None:
    blocks = random_blocks(quant_type(name), 6, 512)
    path = write_checkpoint(tmp_path / "x.gguf", "x", {}, {"t": (name, blocks), "u": ("F32", np.ones(3, np.float32))})
    info = read_header(path).tensors["t"]
    assert (info.shape, info.type.name) == ((6, 512), name)
    (tensor,) = (tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "t")
    assert tensor.data.view(np.uint8).tobytes() == blocks.tobytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_checkpoint_is_one_that_gguf_reads(family: str, tmp_path: Path) -> None:
    reader = gguf.GGUFReader(tiny_gguf(tmp_path, family, "Q6_K"))
    assert reader.fields["general.architecture"].contents() == family
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert len(tokens) == len(set(tokens)) == 352
    assert {tensor.tensor_type.name for tensor in reader.tensors} == {"Q6_K", "F32"}
