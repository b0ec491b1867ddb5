from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from engines.gguf.model import build_model
from engines.header import read_header
from engines.text.warm_up import warm_up
from tests.engines.gguf.helpers_tiny import tiny_gguf


class Recorded:
    """A model, and how many rows and tokens it is given."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.layers = model.layers
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, inputs: mx.array, cache: Any) -> Any:
        self.shapes.append(inputs.shape)
        return self._model(inputs, cache=cache)


@pytest.mark.parametrize(
    ("width", "steps"),
    [(1, {1}), (4, {1, 4}), (8, {1, 8}), (9, {1, 8, 9}), (32, {1, 8, 16, 32}), (100, {1, 8, 16, 32, 64})],
)
def test_warm_up_serves_prompts_and_as_many_rows_as_take_other_kernels(
    width: int, steps: set[int], tmp_path: Path
) -> None:
    model = Recorded(build_model(read_header(tiny_gguf(tmp_path))).model)
    told: list[float] = []
    warm_up(model, width, told.append)
    assert {rows for rows, tokens in model.shapes if tokens == 1} == steps
    prompts = {tokens for _, tokens in model.shapes if tokens > 1}
    assert min(prompts) <= 8 and max(prompts) > 64
    assert told == sorted(told) and told[-1] == 1
