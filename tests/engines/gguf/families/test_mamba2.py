"""Mamba 2."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from engines.gguf.model import build_model
from engines.gguf.stand_ins.mamba2 import GroupedGatedNorm
from engines.header import read_header
from tests.engines.gguf.families.helpers_family import VOCABULARY, Array, Case, checks, floats_of, write_case
from tests.engines.gguf.families.helpers_mamba2 import KEPT_FLOATS, MAMBA2_NAMES, mamba2_converted, mamba2_initial
from tests.engines.gguf.families.helpers_names import renamed

HEADS, WIDTH, STATE = 4, 32, 16
CONFIG: dict[str, Any] = {
    "model_type": "mamba2",
    "num_heads": HEADS,
    "head_dim": WIDTH,
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": HEADS * WIDTH,
    "state_size": STATE,
    "num_hidden_layers": 2,
    "layer_norm_epsilon": 1e-5,
    "conv_kernel": 4,
    "n_groups": 1,
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": False,
    "time_step_limit": (0.0, math.inf),
    "time_step_rank": "auto",
}
METADATA: dict[str, Any] = {
    "context_length": 1 << 20,
    "embedding_length": 64,
    "feed_forward_length": 0,
    "attention.head_count": 0,
    "block_count": 2,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": HEADS * WIDTH,
    "ssm.state_size": STATE,
    "ssm.time_step_rank": HEADS,
    "ssm.group_count": 1,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
NAMES = {
    "backbone.embeddings.weight": "token_embd.weight",
    "backbone.norm_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "norm.weight": "attn_norm.weight",
    **{f"mixer.{name}": ours for name, ours in MAMBA2_NAMES.items()},
}


def converted(weights: dict[str, Array], config: dict[str, Any]) -> dict[str, Array]:
    return {
        name: mamba2_converted(own.removeprefix("mixer."), value, config["n_groups"]) if "mixer." in own else value
        for name, own, value in renamed(weights, NAMES)
    }


def group_norms(model: Any) -> None:
    """The stock class takes the gated norm over all groups, which is not what Mamba 2 was trained with."""
    for layer in model.layers:
        mixer = layer.mixer
        mixer.norm = GroupedGatedNorm(mixer.norm, mixer.n_groups, 1e-5)


CASE = Case(
    "mamba2",
    "mamba2",
    CONFIG,
    METADATA,
    converted,
    floats=KEPT_FLOATS,
    initial=mamba2_initial,
    required=("block_count", "embedding_length", "context_length", "ssm.inner_size"),
)
CASES = [
    CASE,
    replace(
        CASE,
        id="mamba2-groups-tied",
        light=True,
        proof="as the others, with the stock gated norm taken a group at a time",
        config=CONFIG | {"n_groups": 2, "tie_word_embeddings": True},
        metadata=METADATA | {"ssm.group_count": 2},
        initial=lambda name, random: 0.3 * random if "embed" in name else mamba2_initial(name, random),
        prepare=group_norms,
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)


def test_grouped_norm_is_that_of_each_group() -> None:
    x, gate, weight = (np.random.default_rng(i).standard_normal((3, 5, 12)).astype(np.float32) for i in range(3))

    class Stock:
        weight: mx.array

    stock = Stock()
    stock.weight = mx.array(weight[0, 0])
    got = np.array(GroupedGatedNorm(stock, 3, 1e-5)(mx.array(x), mx.array(gate)))
    gated = (x * gate / (1 + np.exp(-gate))).reshape(3, 5, 3, 4)
    wanted = (gated / np.sqrt((gated**2).mean(-1, keepdims=True) + 1e-5)).reshape(3, 5, 12) * weight[0, 0]
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_a_row_costs_the_same_whatever_its_length(tmp_path: Path) -> None:
    built = build_model(read_header(write_case(tmp_path / "state.gguf", CASE, floats_of(CASE)[1])))
    assert (built.kv_bytes_per_token, built.kv_window_tokens) == (0, 0)
    channels = HEADS * WIDTH + 2 * STATE
    assert built.state_bytes == 2 * 4 * (3 * channels + HEADS * WIDTH * STATE)
