"""Dequantisation against the reference on every tensor of the real files."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as reference

from engines.gguf.tensors import TensorFile
from engines.header import read_header

ROWS = 8192  # at a time, so that an embedding of 262144 rows does not fill the memory three times over


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2_path", "gemma_path"])
def test_dequantize_gives_the_reference_bits_on_every_real_tensor(model: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(model)
    header = read_header(path)
    seen = set()
    with TensorFile(header) as tensors:
        for name, info in header.tensors.items():
            quant, blocks = tensors.quant(name), tensors.blocks(name)
            seen.add(quant.name)
            rows = blocks.reshape(-1, blocks.shape[-1])
            for start in range(0, len(rows), ROWS):
                part = rows[start : start + ROWS]
                raw = np.array(part)
                expected = reference(raw, GGMLQuantizationType[quant.name]).view(np.uint32)
                assert np.array_equal(quant.dequantize_numpy(raw).view(np.uint32), expected), name
                assert np.array_equal(np.array(quant.dequantize(part)).view(np.uint32), expected), name
            assert quant.columns(blocks.shape[-1]) == info.shape[-1]
    assert (
        seen == {"smollm2_path": {"F32", "Q4_1", "Q8_0"}, "gemma_path": {"F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"}}[model]
    )
