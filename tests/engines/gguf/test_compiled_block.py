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
from mlx_lm.models.cache import BatchKVCache, BatchRotatingKVCache, KVCache, make_prompt_cache

from engines.gguf.block_parts import block_parts
from engines.gguf.compiled_block import CompiledBlock, Shared, compiled_blocks
from engines.gguf.model import build_model
from engines.header import read_header
from tests.engines.gguf.helpers_device import Device
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


def decoded(model: Any, left: list[int] | None = None) -> mx.array:
    """Logits [rows, steps, vocabulary] of single tokens after a prompt; in a batch's caches where ``left`` says what is padding."""
    cache = make_prompt_cache(model)
    if left is not None:
        whole = [type(each) is KVCache for each in cache]
        cache = [
            BatchKVCache(left) if is_whole else BatchRotatingKVCache(each.max_size, left)
            for each, is_whole in zip(cache, whole, strict=True)
        ]
    model(PROMPT, cache=cache)
    return mx.concatenate([model(STEPS[:, i : i + 1], cache=cache) for i in range(STEPS.shape[1])], axis=1)


def counted(calls: list[int], before: Any, x: mx.array, offset: mx.array) -> Any:
    calls.append(x.shape[1])
    return before(x, offset)


def replace(model: Any, device: Device | None = None) -> list[CompiledBlock]:
    blocks = compiled_blocks(model.layers, device)
    model.model.layers = blocks
    assert all(isinstance(block, CompiledBlock) for block in blocks)
    return blocks


@pytest.fixture(params=TINY_FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("engines.gguf.model.fuse_blocks", lambda model: None)
    return build_model(read_header(tiny_model(request.param).write(tmp_path / "m.gguf"))).model


def test_compiled_block_answers_as_the_stock_block(model: Any) -> None:
    stock = decoded(model)
    calls: list[int] = []
    for block in replace(model):
        block._before = partial(counted, calls, block._before)
    assert mx.array_equal(decoded(model), stock)
    assert calls == [1] * (3 * len(model.layers))  # prompts go the stock way


@pytest.mark.parametrize("able", [True, False])
def test_compiled_block_takes_the_kernels_between_products(model: Any, able: bool) -> None:
    stock = decoded(model)
    device = Device(able)
    replace(model, device)
    assert mx.allclose(decoded(model), stock, atol=1e-5)
    layers = len(model.layers)
    # The norms before the first layer and behind the last stay the model's own.
    assert device.calls.count("sum_norm") == 3 * (2 * layers - 1)
    assert device.calls.count("rotate") == 3 * layers


@pytest.mark.parametrize("able", [True, False])
def test_compiled_block_attends_over_a_batch_without_its_padding(model: Any, able: bool) -> None:
    left = [0, 2]
    stock = decoded(model, left)
    device = Device(able)
    replace(model, device)
    got = decoded(model, left)
    assert mx.allclose(got, stock, atol=1e-5)
    whole = sum(type(each) is KVCache for each in make_prompt_cache(model))
    assert device.calls.count("attend") == (3 * whole if able else 0)


def test_compiled_block_takes_an_offset_of_each_row(model: Any) -> None:
    layer, x = model.layers[0], mx.random.normal((2, 1, model.args.hidden_size))
    parts = block_parts(layer, None, None)
    assert parts is not None
    both = parts.before_attention(x, mx.array([3, 8]))
    for row, offset in enumerate((3, 8)):
        alone = parts.before_attention(x[row : row + 1], mx.array(offset))
        assert all(mx.allclose(a[row], b[0], atol=1e-5) for a, b in zip(both, alone, strict=True))


@pytest.mark.parametrize("owner", ["self_attn.o_proj", "input_layernorm", "mlp.down_proj"])
def test_compiled_block_sees_a_leaf_that_is_replaced(model: Any, owner: str) -> None:
    replace(model, Device())
    before = decoded(model)
    *path, name = owner.split(".")
    module = model.layers[1] if not path else model.layers[1][path[0]]
    module[name] = Shifted(module[name])
    assert not mx.allclose(decoded(model), before, atol=1e-3)


def test_compiled_blocks_leave_a_block_that_is_not_known() -> None:
    class TransformerBlock:
        pass

    block = TransformerBlock()
    assert compiled_blocks([block], None) == [block]


def test_shared_makes_one_array_for_all_layers() -> None:
    shared = Shared()
    first = shared.offset(4)
    assert first.item() == 4 and shared.offset(4) is first
    assert shared.offset(5).item() == 5
    rows = mx.array([1, 2])
    assert shared.offset(rows) is rows


def test_shared_appends_as_the_cache_itself_would() -> None:
    shared, cache, stock = Shared(), BatchKVCache([0, 1]), BatchKVCache([0, 1])
    beside = BatchKVCache([0, 1])
    beside.offset = cache.offset
    for step in range(258):  # a second piece of room is made on the way
        keys, values = mx.full((2, 1, 1, 4), step), mx.full((2, 1, 1, 4), -step)
        shared.append(cache, keys, values)
        shared.append(beside, keys, values)
        held = stock.update_and_fetch(keys, values)  # type: ignore[no-untyped-call]
        assert cache.offset is beside.offset
    got = cache.keys_and_values()  # type: ignore[no-untyped-call]
    assert all(mx.array_equal(*pair) for pair in zip(got, held, strict=True))
    assert cache.offset.tolist() == beside.offset.tolist() == stock.offset.tolist() and cache._idx == stock._idx


def test_shared_hands_a_norm_on_once_and_to_its_own_answer_alone() -> None:
    shared, answer, normed = Shared(), mx.array([1.0]), mx.array([2.0])
    assert shared.keep(answer, normed) is answer
    assert shared.take(answer) is normed
    assert shared.take(answer) is None
    shared.keep(answer, normed)
    assert shared.take(mx.array([1.0])) is None
