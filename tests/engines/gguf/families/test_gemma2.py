"""gemma and gemma2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models import gemma2

from engines.gguf.model import build_model
from engines.header import read_header
from tests.engines.gguf.families.helpers_dense import CONFIG, by_name, keys, plus_one
from tests.engines.gguf.families.helpers_family import Case, checks, floats_of, tokens, write_case
from tests.engines.gguf.helpers_tiny import apart

WINDOW = 8
GEMMA: dict[str, Any] = CONFIG | {"model_type": "gemma", "head_dim": 32}
GEMMA2: dict[str, Any] = CONFIG | {
    "model_type": "gemma2",
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
}
CAPS: dict[str, Any] = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}


class WindowedAttention(gemma2.Attention):
    """The stock attention with a mask of positions made here: of one row, whose cache keeps everything."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> Any:
        queries = mx.arange(cache.offset, cache.offset + x.shape[1])[:, None]
        ages = queries - mx.arange(cache.offset + x.shape[1])
        return super().__call__(x, (ages >= 0) & (ages < WINDOW), cache)


def windowed(model: Any) -> None:
    """Every other layer, from the first, attends to a window."""
    for layer in model.layers[::2]:
        layer.self_attn.__class__ = WindowedAttention


CASES = [
    Case("gemma", "gemma", GEMMA, keys(GEMMA), by_name("gemma", plus_one)),
    # The stock class knows of no windows, so that the one of these two lets everything through.
    Case(
        "gemma2",
        "gemma2",
        GEMMA2,
        keys(GEMMA2, attention__sliding_window=256, **CAPS),
        by_name("gemma2", plus_one),
        light=True,
    ),
    Case(
        "gemma2-windows",
        "gemma2",
        GEMMA2,
        keys(GEMMA2, attention__sliding_window=WINDOW, **CAPS),
        by_name("gemma2", plus_one),
        proof="stock mlx-lm attention with masks of windows made by the test",
        prepare=windowed,
    ),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)


def test_gemma2_of_46_layers_divides_scores_by_width_per_head(tmp_path: Path) -> None:
    """No key says it of the 27B model."""
    config = GEMMA2 | {"num_hidden_layers": 46, "hidden_size": 32, "intermediate_size": 32, "query_pre_attn_scalar": 8}
    case = Case("27b", "gemma2", config, keys(config, **CAPS), by_name("gemma2", plus_one))
    stock, tensors = floats_of(case)
    built = build_model(read_header(write_case(tmp_path / "27b.gguf", case, tensors)))
    assert apart(built.model(tokens(9)), stock(tokens(9))) < 1e-4
