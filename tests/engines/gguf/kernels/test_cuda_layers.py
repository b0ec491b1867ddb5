"""Layers whose graph is kept, and the kernels between their products, against MLX's own operations. Needs an NVIDIA GPU."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import BatchKVCache, make_prompt_cache

from engines.gguf import model as models
from engines.gguf.compiled_block import CompiledBlock
from engines.gguf.kernels.cuda import CudaBackend
from engines.gguf.kernels.gathering import Rotation
from engines.gguf.model import build_model
from engines.header import read_header
from tests.engines.gguf.helpers_tiny import FAMILIES, tiny_model

pytestmark = pytest.mark.skipif(not mx.cuda.is_available(), reason="no CUDA device")

DTYPES = {"float16": (mx.float16, 2e-3), "bfloat16": (mx.bfloat16, 1.6e-2)}


def apart(got: mx.array, expected: mx.array) -> float:
    got, expected = got.astype(mx.float32), expected.astype(mx.float32)
    return float(mx.linalg.norm(got - expected) / mx.linalg.norm(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("width", [8, 576, 4096, 5376])
def test_sum_norm_is_that_of_mlx(width: int, inner: bool, dtype: str) -> None:
    kind, bound = DTYPES[dtype]
    x, r = (mx.random.normal((5, 1, width)).astype(kind) for _ in range(2))
    weight, other = ((mx.random.uniform(0.5, 1.5, (width,))).astype(kind) for _ in range(2))
    both = CudaBackend().sum_norm(x, r, weight, 1e-5, (other, 1e-6) if inner else None)
    assert both is not None
    h = x + (mx.fast.rms_norm(r, other, 1e-6) if inner else r)
    assert apart(both[0], h) < bound
    assert apart(both[1], mx.fast.rms_norm(h, weight, 1e-5)) < bound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offsets", [7, [0, 4000, 31, 2]])
@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("waves", [False, True])
def test_rotate_is_that_of_mlx(waves: bool, traditional: bool, offsets: Any, dtype: str) -> None:
    kind, bound = DTYPES[dtype]
    queries, keys = (mx.random.normal((4, heads, 1, 80)).astype(kind) for heads in (6, 2))
    wavelengths = mx.random.uniform(1.0, 2000.0, (32,)) if waves else None
    rotation = Rotation(64, traditional, 5e5, 1.0 if waves else 0.25, 1.0, wavelengths)
    offset = mx.array(offsets, dtype=mx.int32)
    both = CudaBackend().rotate(queries, keys, offset, rotation)
    assert both is not None
    for given, got in zip((queries, keys), both, strict=True):
        expected = mx.fast.rope(
            given,
            64,
            traditional=traditional,
            base=None if waves else 5e5,
            scale=rotation.scale,
            offset=offset,
            freqs=wavelengths,
        )
        assert apart(got, expected) < bound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("features", "heads", "kv_heads"), [(128, 32, 8), (64, 9, 3), (256, 4, 1), (96, 16, 1), (128, 12, 12)]
)
def test_attend_is_that_of_mlx_without_padding(features: int, heads: int, kv_heads: int, dtype: str) -> None:
    kind, bound = DTYPES[dtype]
    for rows, room, used in ((1, 256, 1), (4, 256, 200), (1, 1024, 1000), (2, 4096, 3001)):
        queries = mx.random.normal((rows, heads, 1, features)).astype(kind)
        keys, values = (mx.random.normal((rows, kv_heads, room, features)).astype(kind) for _ in range(2))
        left = mx.array([min(used - 1, 37 * row) for row in range(rows)], dtype=mx.int32)
        got = CudaBackend().attend(queries, keys, values, left, mx.array([used], dtype=mx.int32), features**-0.5)
        at = mx.arange(room)
        mask = ((at >= left[:, None]) & (at < used))[:, None, None, :]
        wide = [each.astype(mx.float32) for each in (queries, keys, values)]
        expected = mx.fast.scaled_dot_product_attention(*wide, scale=features**-0.5, mask=mask)
        assert got.dtype == kind
        assert apart(got, expected) < bound, (rows, room, used)


def logits(model: Any, rows: int) -> mx.array:
    prompts = mx.random.randint(0, 352, (rows, 6), key=mx.random.key(1))
    steps = mx.random.randint(0, 352, (rows, 4), key=mx.random.key(2))
    cache = make_prompt_cache(model) if rows == 1 else [BatchKVCache([0] * rows) for _ in model.layers]
    model(prompts, cache=cache)
    return mx.concatenate([model(steps[:, i : i + 1], cache=cache) for i in range(4)], axis=1)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_kept_graphs_answer_as_stock_layers(
    family: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = read_header(tiny_model(family, quant="Q8_0").write(tmp_path / "m.gguf"))
    kept = build_model(header, dtype="float16").model
    monkeypatch.setattr(models, "fuse_blocks", lambda model: None)
    stock = build_model(header, dtype="float16").model
    blocks = [type(layer) is CompiledBlock for layer in kept.model.layers]
    assert all(blocks) == any(blocks) == (family != "gemma3")  # whose sums are bounded in float16
    assert apart(logits(kept, rows), logits(stock, rows)) < 1e-2
