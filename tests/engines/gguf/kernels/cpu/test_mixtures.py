"""Stock mixtures of experts of mlx-lm with K-quant experts, on the compiled kernels."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from engines.gguf.fused import GatedMLP
from engines.gguf.kernels.cpu import Extension
from engines.gguf.model import build_model
from engines.header import read_header
from tests.engines.gguf.families import test_qwen2moe
from tests.engines.gguf.families.helpers_family import VOCABULARY, floats_of, write_case
from tests.engines.gguf.helpers_moe import MIXTURES, mixture

TOKENS = np.random.default_rng(0).integers(0, 200, (2, 40))


@pytest.mark.parametrize("name", MIXTURES)
def test_logits_are_near_those_of_the_stock_model(name: str, compiled: Extension) -> None:
    """Within what activations of 8 bits change, in a prompt that mlx-lm sorts by expert and in a step that it does not."""
    stock, ours = mixture(name)
    caches = make_prompt_cache(stock), make_prompt_cache(ours)
    for tokens in (TOKENS[:, :39], TOKENS[:, 39:]):
        expected, got = (
            np.array(each(mx.array(tokens), cache=cache)) for each, cache in zip((stock, ours), caches, strict=True)
        )
        assert 1e-4 < np.linalg.norm(got - expected) / np.linalg.norm(expected) < 5e-2


def test_the_expert_that_all_tokens_share_is_fused(compiled: Extension, tmp_path: Path) -> None:
    case = test_qwen2moe.CASES[0]
    stock, tensors = floats_of(case)
    built = build_model(read_header(write_case(tmp_path / "shared.gguf", case, tensors)))
    assert all(isinstance(layer.mlp.shared_expert, GatedMLP) for layer in built.model.layers)
    tokens = mx.array(TOKENS[:1] % VOCABULARY)
    expected, got = (np.array(each(tokens, cache=make_prompt_cache(each))) for each in (stock, built.model))
    assert np.linalg.norm(got - expected) / np.linalg.norm(expected) < 1e-4
