"""Whole models on the compiled kernels: near the exact ones, and the same whatever they are batched with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.generate import GenerationBatch, PromptProcessingBatch
from mlx_lm.models.cache import make_prompt_cache

from engines.gguf import fused_block
from engines.gguf.fused import FusedLayerNorm, FusedRMSNorm, FusedRoPE, GatedMLP
from engines.gguf.fused_block import FusedBlock
from engines.gguf.kernels import table
from engines.gguf.kernels.cpu import Extension
from engines.gguf.model import build_model
from engines.header import read_header
from engines.text.adapt import FusedAttention
from tests.engines.gguf.families import test_cohere, test_starcoder2
from tests.engines.gguf.families.helpers_family import floats_of, tokens, write_case
from tests.engines.gguf.helpers_tiny import FAMILIES, tiny_model

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE_SCALING = {
    "type": "longrope",
    "short_factor": [1.0 + i / 24 for i in range(24)],
    "long_factor": [2.0 + i / 24 for i in range(24)],
}
TOKENS = np.random.default_rng(0).integers(3, 352, (1, 24))


@pytest.fixture(autouse=True)
def attention(compiled: Extension) -> Iterator[None]:
    adapted = FusedAttention()
    adapted.open()
    yield
    adapted.close()


def built(family: str, path: Path, **changes: Any) -> Any:
    return build_model(read_header(tiny_model(family, **changes).write(path / "tiny.gguf"))).model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quant", ["Q4_K", "Q8_0", "F32"])
def test_logits_are_near_those_of_the_exact_kernels(
    family: str, quant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = np.array(built(family, tmp_path, quant=quant)(mx.array(TOKENS)))
    with monkeypatch.context() as patched:
        patched.setattr(table, "BACKENDS", tuple(each for each in table.BACKENDS if each.name != "cpu"))
        exact = np.array(built(family, tmp_path, quant=quant)(mx.array(TOKENS)))
    assert np.linalg.norm(fast - exact) / np.linalg.norm(exact) < (1e-4 if quant == "F32" else 5e-2)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_decoding_gives_the_bits_of_the_prompt(family: str, tmp_path: Path) -> None:
    model = built(family, tmp_path, quant="Q4_K")
    whole = np.array(model(mx.array(TOKENS), cache=make_prompt_cache(model)))
    cache = make_prompt_cache(model)
    steps = [model(mx.array(TOKENS[:, :9]), cache=cache)]
    steps += [model(mx.array(TOKENS[:, i : i + 1]), cache=cache) for i in range(9, 24)]
    np.testing.assert_array_equal(np.array(mx.concatenate(steps, axis=1)), whole)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_rows_of_a_batch_get_the_bits_they_get_alone(family: str, tmp_path: Path) -> None:
    model = built(family, tmp_path, quant="Q4_K")
    prompts = [[int(token) for token in TOKENS[0, :length]] for length in (5, 23, 11)]

    def pick(logits: mx.array) -> mx.array:
        return mx.argmax(logits, axis=-1)

    def generate(rows: list[int]) -> dict[int, list[tuple[int, bytes]]]:
        batch = GenerationBatch.empty(model, pick)
        for row in rows:
            prompt = PromptProcessingBatch(model, [row], [make_prompt_cache(model)], prefill_step_size=7)
            batch.extend(prompt.generate([prompts[row]]))
        answers: dict[int, list[tuple[int, bytes]]] = {row: [] for row in rows}
        for _ in range(8):
            for response in batch.next():
                answers[response.uid].append((response.token, np.array(response.logprobs).tobytes()))
        return answers

    together = generate([0, 1, 2])
    for row in range(3):
        assert generate([row])[row] == together[row]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quant", ["Q4_K", "Q5_0"])
def test_blocks_of_a_model_give_the_bits_of_their_leaves(
    family: str, quant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt longer than is multiplied at a time, a step, and no cache at all."""

    def same(got: mx.array, expected: mx.array) -> None:
        if family == "phi3":  # whose stock MLP has its gate from MLX, where the exponential rounds differently
            assert np.linalg.norm(np.array(got - expected)) < 1e-2 * np.linalg.norm(np.array(expected))
        else:
            np.testing.assert_array_equal(got, expected)

    model = built(family, tmp_path, quant=quant)
    assert all(isinstance(layer, FusedBlock) for layer in model.layers)
    with monkeypatch.context() as patched:
        patched.setattr(fused_block, "fused_block", lambda *_: None)
        leaves = built(family, tmp_path, quant=quant)
    assert not any(isinstance(layer, FusedBlock) for layer in leaves.layers)
    tokens = mx.array(np.random.default_rng(1).integers(3, 352, (2, 141)))
    caches = make_prompt_cache(model), make_prompt_cache(leaves)
    for part in (tokens[:, :140], tokens[:, 140:]):
        got, expected = (each(part, cache=cache) for each, cache in zip((model, leaves), caches, strict=True))
        same(got, expected)
    same(model(tokens[:, :20]), leaves(tokens[:, :20]))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"rope_scaling": LLAMA3_SCALING}),
        ("phi3", {"rope_scaling": LONGROPE_SCALING, "original_max_position_embeddings": 64}),
    ],
)
def test_blocks_scale_their_rotary_embedding(
    family: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = built(family, tmp_path, quant="F32", **changes)
    assert isinstance(model.layers[0], FusedBlock)
    monkeypatch.setattr(fused_block, "fused_block", lambda *_: None)
    leaves = built(family, tmp_path, quant="F32", **changes)
    np.testing.assert_allclose(model(mx.array(TOKENS)), leaves(mx.array(TOKENS)), rtol=0, atol=1e-4)


def test_a_block_with_yarn_is_fused(tmp_path: Path) -> None:
    tiny = tiny_model(
        "llama", rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    )
    model = build_model(read_header(tiny.write(tmp_path / "yarn.gguf"))).model
    assert isinstance(model.layers[0], FusedBlock)
    np.testing.assert_allclose(model(mx.array(TOKENS)), tiny.stock(mx.array(TOKENS)), rtol=0, atol=1e-4)


def test_layer_norms_are_compiled(tmp_path: Path) -> None:
    """With a bias (starcoder2) and without (command-r)."""
    for case in (test_starcoder2.CASES[0], test_cohere.CASES[0]):
        stock, tensors = floats_of(case)
        model = build_model(read_header(write_case(tmp_path / f"{case.id}.gguf", case, tensors))).model
        assert isinstance(model.layers[0].input_layernorm, FusedLayerNorm)
        np.testing.assert_allclose(model(tokens(20)), stock(tokens(20)), rtol=0, atol=1e-4)


def test_a_block_sees_that_a_leaf_is_replaced(tmp_path: Path) -> None:
    """By one that adds something, as an adapter does; and the stock block's paths lead to its leaves."""

    class Doubled(Module):
        def __init__(self, linear: Any) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.linear = linear

        def __call__(self, x: mx.array) -> Any:
            return 2 * self.linear(x)

    for name in ("self_attn.v_proj", "mlp.down_proj"):
        model = built("qwen3", tmp_path, quant="Q4_K")
        before = np.array(model(mx.array(TOKENS)))
        leaf = dict(tree_flatten(model.leaf_modules(), is_leaf=lambda leaf: isinstance(leaf, Module)))
        path = f"model.layers.1.{name}"
        model.update_modules(tree_unflatten([(path, Doubled(leaf[path]))]))
        assert np.abs(np.array(model(mx.array(TOKENS))) - before).max() > 1e-3
        model.update_modules(tree_unflatten([(path, leaf[path])]))
        np.testing.assert_array_equal(model(mx.array(TOKENS)), before)


def test_leaves_of_a_model_are_the_compiled_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_block, "fused_block", lambda *_: None)
    model = built("qwen3", tmp_path, quant="Q4_K")
    layer = model.layers[0]
    assert isinstance(layer.mlp, GatedMLP)
    assert isinstance(layer.input_layernorm, FusedRMSNorm)
    assert isinstance(layer.self_attn.q_norm, FusedRMSNorm)
    assert isinstance(layer.self_attn.rope, FusedRoPE)
