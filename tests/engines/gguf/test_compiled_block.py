"""Layers whose graph is kept: the stock block's answers, whatever its family and cache. No GPU; MLX's compiler is off, since on
the CPU it would call a C++ compiler. What it keeps is tested on a GPU, by ``kernels/test_cuda.py``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import make_prompt_cache

from engines.gguf import block_parts
from engines.gguf.compiled_block import CompiledBlock, Offsets, compiled_block
from engines.gguf.model import build_model
from engines.header import read_header
from tests.engines.gguf.helpers_tiny import FAMILIES as TINY_FAMILIES
from tests.engines.gguf.helpers_tiny import tiny_model

PROMPT = mx.array([[5, 9, 3, 77, 21], [6, 2, 8, 1, 4]])
STEPS = mx.array([[7, 30, 2], [9, 9, 50]])


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    mx.disable_compile()
    yield
    mx.enable_compile()


class Shifted(Module):
    """As an adapter stands over a leaf."""

    def __init__(self, leaf: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.leaf = leaf

    def __call__(self, x: mx.array) -> Any:
        return self.leaf(x) + 1.0


def decoded(model: Any) -> mx.array:
    """Logits [rows, steps, vocabulary] of single tokens after a prompt."""
    cache = make_prompt_cache(model)
    model(PROMPT, cache=cache)
    return mx.concatenate([model(STEPS[:, i : i + 1], cache=cache) for i in range(STEPS.shape[1])], axis=1)


def counted(calls: list[int], before: Any, x: mx.array, offset: mx.array) -> Any:
    calls.append(x.shape[1])
    return before(x, offset)


def replaced(model: Any) -> list[CompiledBlock]:
    offsets = Offsets()
    blocks = [compiled_block(layer, offsets) for layer in model.layers]
    model.model.layers = blocks
    return [block for block in blocks if block is not None]


@pytest.fixture(params=TINY_FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("engines.gguf.model.fuse_blocks", lambda model: None)
    return build_model(read_header(tiny_model(request.param).write(tmp_path / "m.gguf"))).model


def test_compiled_block_answers_as_the_stock_block(model: Any) -> None:
    stock = decoded(model)
    calls: list[int] = []
    for block in replaced(model):
        block._before = partial(counted, calls, block._before)
    assert mx.array_equal(decoded(model), stock)
    assert calls == [1] * (3 * len(model.layers))  # prompts go the stock way


def test_compiled_block_takes_an_offset_of_each_row(model: Any) -> None:
    layer, x = model.layers[0], mx.random.normal((2, 1, model.args.hidden_size))
    parts = block_parts.block_parts(layer)
    assert parts is not None
    both = parts.before_attention(x, mx.array([3, 8]))
    for row, offset in enumerate((3, 8)):
        alone = parts.before_attention(x[row : row + 1], mx.array(offset))
        assert all(mx.allclose(a[row], b[0], atol=1e-5) for a, b in zip(both, alone, strict=True))


def test_compiled_block_sees_a_leaf_that_is_replaced(model: Any) -> None:
    replaced(model)
    before = decoded(model)
    attention = model.layers[0].self_attn
    attention.o_proj = Shifted(attention.o_proj)
    assert not mx.allclose(decoded(model), before, atol=1e-3)


def test_compiled_block_is_not_made_of_a_block_that_is_not_known() -> None:
    class TransformerBlock:
        pass

    assert compiled_block(TransformerBlock(), Offsets()) is None


def test_offsets_make_one_array_for_all_layers() -> None:
    offsets = Offsets()
    first = offsets.array(4)
    assert first.item() == 4 and offsets.array(4) is first
    assert offsets.array(5).item() == 5
    rows = mx.array([1, 2])
    assert offsets.array(rows) is rows
