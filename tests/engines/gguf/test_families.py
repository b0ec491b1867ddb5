"""Every family against the stock class: logits of a checkpoint equal those of the model it was written from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from engines.gguf.families import FAMILIES
from engines.gguf.model import build_model
from engines.gguf.quants import QUANT_TYPES
from engines.header import read_header
from tests.engines.gguf.helpers_tiny import FAMILIES as TINY_FAMILIES
from tests.engines.gguf.helpers_tiny import TinyModel, apart, tiny_model

TOLERANCE = 1e-4
SUMS_IN_ANOTHER_ORDER = (
    2e-4  # leaves and stock layers use different matrix products, and random blocks have heavy tails
)
TOKENS = mx.array([[(7 * i * i + 3 * i) % 352 for i in range(24)]])  # longer than every window used here

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
BIASED = {"attention_bias": True, "mlp_bias": True}
ODD_HEADS = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 32}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + 0.01 * i for i in range(24)],
    "long_factor": [1.0 + 0.5 * i for i in range(24)],
}


def logits_apart(tiny: TinyModel, path: Path, tokens: mx.array = TOKENS, **options: Any) -> float:
    """The largest difference between the logits of the stock model and of its checkpoint, read back."""
    built = build_model(read_header(tiny.write(path)), **options)
    return apart(tiny.stock(tokens), built.model(tokens))


def test_families_that_tests_know_are_supported() -> None:
    assert set(TINY_FAMILIES) <= set(FAMILIES)


@pytest.mark.parametrize("family", TINY_FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_f32_equal_stock(family: str, tied: bool, tmp_path: Path) -> None:
    tiny = tiny_model(family, tie_word_embeddings=tied)
    assert ("output.weight" in tiny.tensors) is not tied
    assert logits_apart(tiny, tmp_path / "f32.gguf") < TOLERANCE


# Every type once, the usual ones with every family.
@pytest.mark.parametrize(
    ("family", "quant"),
    [
        (family, quant.name)
        for family in TINY_FAMILIES
        for quant in QUANT_TYPES
        if family == "llama" or quant.name[0] in "QFB"
    ],
)
def test_logits_of_quantised_equal_stock_on_dequantised_weights(family: str, quant: str, tmp_path: Path) -> None:
    assert logits_apart(tiny_model(family, quant=quant), tmp_path / "quantised.gguf") < SUMS_IN_ANOTHER_ORDER


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_logits_of_mixed_quants_equal_stock(family: str, tmp_path: Path) -> None:
    tiny = tiny_model(family, quant="Q4_K", embedding_quant="Q6_K", seed=3)
    assert logits_apart(tiny, tmp_path / "mixed.gguf") < SUMS_IN_ANOTHER_ORDER


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        pytest.param("llama", ODD_HEADS, id="llama-odd-heads"),
        pytest.param("llama", {"head_dim": 40, "num_key_value_heads": 6}, id="llama-no-gqa"),
        pytest.param("llama", BIASED, id="llama-biases"),
        pytest.param("llama", {"rope_scaling": LLAMA3}, id="llama-llama3"),
        pytest.param("llama", {"rope_scaling": LINEAR}, id="llama-linear"),
        pytest.param("llama", {"rope_scaling": YARN}, id="llama-yarn"),
        pytest.param("qwen2", {"rope_scaling": YARN}, id="qwen2-yarn"),
        pytest.param("qwen3", {"rope_scaling": YARN}, id="qwen3-yarn"),
        pytest.param("gemma3", {"rope_scaling": LINEAR}, id="gemma3-linear"),
        pytest.param("gemma3", {"sliding_window_pattern": 6, "num_hidden_layers": 7}, id="gemma3-default-pattern"),
        pytest.param("gemma3", {"rope_local_base_freq": 500.0}, id="gemma3-windowed-base"),
        pytest.param("phi3", {"partial_rotary_factor": 1.0}, id="phi3-whole-rotary"),
        pytest.param(
            "phi3",
            {"rope_scaling": LONGROPE, "original_max_position_embeddings": 32, "max_position_embeddings": 512},
            id="phi3-longrope",
        ),
    ],
)
def test_logits_of_variants_equal_stock(family: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    assert logits_apart(tiny_model(family, **overrides), tmp_path / "variant.gguf") < TOLERANCE


@pytest.mark.parametrize("scaling", [LLAMA3, LINEAR, YARN], ids=["llama3", "linear", "yarn"])
def test_rope_scaling_changes_logits(scaling: dict[str, Any], tmp_path: Path) -> None:
    scaled, plain = tiny_model("llama", rope_scaling=scaling), tiny_model("llama")
    built = build_model(read_header(scaled.write(tmp_path / "scaled.gguf")))
    assert apart(plain.stock(TOKENS), built.model(TOKENS)) > 100 * TOLERANCE


def test_phi3_short_context_rotates_by_short_factors(tmp_path: Path) -> None:
    lengths: dict[str, Any] = {"original_max_position_embeddings": 64, "max_position_embeddings": 512}
    tiny = tiny_model("phi3", rope_scaling=LONGROPE, **lengths)
    # The stock class always rotates by its long factors, so the one to compare with is given the short ones as such.
    short = tiny_model("phi3", rope_scaling=LONGROPE | {"long_factor": LONGROPE["short_factor"]}, **lengths)
    built = build_model(read_header(tiny.write(tmp_path / "short.gguf")), context=64)
    assert built.context == 64
    assert apart(short.stock(TOKENS), built.model(TOKENS)) < TOLERANCE
    assert apart(tiny.stock(TOKENS), built.model(TOKENS)) > 100 * TOLERANCE


def test_qwen2_without_biases_equals_stock_with_zero_biases(tmp_path: Path) -> None:
    tiny = tiny_model("qwen2")
    biases = [name for name in tiny.tensors if name.endswith(".bias")]
    assert len(biases) == 3 * 3
    for layer in tiny.stock.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            projection.bias = mx.zeros_like(projection.bias)
    path = tiny.write(tmp_path / "unbiased.gguf", tensors=dict.fromkeys(biases))
    built = build_model(read_header(path))
    assert apart(tiny.stock(TOKENS), built.model(TOKENS)) < TOLERANCE


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_logits_with_cache_equal_logits_without(family: str, tmp_path: Path) -> None:
    tiny = tiny_model(family, quant="Q8_0")
    model = build_model(read_header(tiny.write(tmp_path / "cached.gguf"))).model
    cache = make_prompt_cache(model)
    stepwise = [model(TOKENS[:, :17], cache=cache)]
    stepwise += [model(TOKENS[:, i : i + 1], cache=cache) for i in range(17, 24)]
    assert apart(mx.concatenate(stepwise, axis=1), tiny.stock(TOKENS)) < TOLERANCE


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_window_of_all_layers_hides_what_is_older(family: str, tmp_path: Path) -> None:
    """With one layer, a token is out of sight exactly when it is a window away: a fact that needs no reference model."""
    window = 8
    tiny = tiny_model(family, num_hidden_layers=1)
    path = tiny.write(tmp_path / "window.gguf", metadata={f"{family}.attention.sliding_window": window})
    built = build_model(read_header(path))
    assert (built.kv_bytes_per_token, built.kv_window_tokens) == (0, window)

    def last_logits(tokens: list[int], first_chunk: int) -> Any:
        cache = built.model.make_cache()
        built.model(mx.array([tokens[:first_chunk]]), cache=cache)
        logits = built.model(mx.array([tokens[first_chunk:]]), cache=cache)
        return np.array(logits[0, -1])

    tokens = [int(token) for token in np.array(TOKENS)[0, :20]]
    seen, unseen = list(tokens), list(tokens)
    unseen[20 - window - 1] += 1  # a window behind the last token's position
    seen[20 - window] += 1  # the oldest in its window
    for first_chunk in (12, 19):  # the rest as a chunk, and as one decode step
        plain = last_logits(tokens, first_chunk)
        assert np.abs(plain - last_logits(unseen, first_chunk)).max() == 0
        assert np.abs(plain - last_logits(seen, first_chunk)).max() > 100 * TOLERANCE


def test_window_as_long_as_the_context_is_none(tmp_path: Path) -> None:
    tiny = tiny_model("llama")
    header = read_header(tiny.write(tmp_path / "wide.gguf", metadata={"llama.attention.sliding_window": 512}))
    built = build_model(header)
    assert built.kv_window_tokens == 0
    assert apart(tiny.stock(TOKENS), built.model(TOKENS)) < TOLERANCE


def test_gemma3_27b_divides_scores_by_width_per_head(tmp_path: Path) -> None:
    small: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 16, "num_hidden_layers": 62}
    tiny = tiny_model("gemma3", **small, sliding_window_pattern=6, query_pre_attn_scalar=32 / 4)
    assert logits_apart(tiny, tmp_path / "27b.gguf") < TOLERANCE
