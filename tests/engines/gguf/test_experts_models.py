"""Stock mixtures of experts of mlx-lm with K-quant experts, on the back ends that multiply exactly."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from engines.gguf.kernels import table
from tests.engines.gguf.helpers_moe import MIXTURES, mixture

TOKENS = np.random.default_rng(0).integers(0, 200, (2, 40))


@pytest.mark.parametrize("backend", ["blas", "portable"])
@pytest.mark.parametrize("name", MIXTURES)
def test_logits_are_those_of_the_stock_model(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that mlx-lm sorts by expert, then a step that it does not."""
    monkeypatch.setattr(table, "BACKENDS", tuple(each for each in table.BACKENDS if each.name == backend))
    stock, ours = mixture(name)
    caches = make_prompt_cache(stock), make_prompt_cache(ours)
    for tokens in (TOKENS[:, :39], TOKENS[:, 39:]):
        expected, got = (
            np.array(each(mx.array(tokens), cache=cache)) for each, cache in zip((stock, ours), caches, strict=True)
        )
        assert np.linalg.norm(got - expected) < 1e-4 * np.linalg.norm(expected)
