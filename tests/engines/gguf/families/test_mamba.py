"""The first Mamba, Falcon Mamba, and Jamba."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from engines.gguf.model import build_model
from engines.gguf.stand_ins.selective_scan import WeightedExperts
from engines.header import read_header
from tests.engines.gguf.families.helpers_family import (
    VOCABULARY,
    Array,
    Case,
    Wide,
    checks,
    floats_of,
    tokens,
    write_case,
)
from tests.engines.gguf.families.helpers_names import matrix_of_convolution, minus_exp, renamed

CONFIG: dict[str, Any] = {
    "model_type": "mamba",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "state_size": 8,
    "num_hidden_layers": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_rank": 32,
    "tie_word_embeddings": False,
    "mixer_rms_eps": 1e-5,
}
METADATA: dict[str, Any] = {
    "context_length": 1 << 20,
    "embedding_length": 64,
    "feed_forward_length": 0,
    "attention.head_count": 0,
    "block_count": 2,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 8,
    "ssm.time_step_rank": 32,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "ssm.dt_b_c_rms": False,
}
JAMBA: dict[str, Any] = {
    "model_type": "jamba",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attn_layer_offset": 1,
    "attn_layer_period": 3,
    "expert_layer_offset": 1,
    "expert_layer_period": 2,
    "mamba_d_conv": 4,
    "mamba_d_state": 8,
    "mamba_expand": 2,
    "mamba_dt_rank": 32,
    "num_experts": 1,
    "num_experts_per_tok": 1,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}
JAMBA_METADATA: dict[str, Any] = {
    "context_length": 256,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": [0, 2, 0, 0],
    "block_count": 4,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 8,
    "ssm.time_step_rank": 32,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "expert_count": 1,
    "expert_used_count": 1,
}
MIXER = {
    "in_proj.weight": "ssm_in.weight",
    "conv1d.weight": "ssm_conv1d.weight",
    "conv1d.bias": "ssm_conv1d.bias",
    "x_proj.weight": "ssm_x.weight",
    "dt_proj.weight": "ssm_dt.weight",
    "dt_proj.bias": "ssm_dt.bias",
    "A_log": "ssm_a",
    "D": "ssm_d",
    "out_proj.weight": "ssm_out.weight",
    **{f"{x}_layernorm.weight": f"ssm_{x}_norm.weight" for x in ("dt", "b", "c")},
}
NAMES = {
    "backbone.embeddings.weight": "token_embd.weight",
    "backbone.norm_f.weight": "output_norm.weight",
    "model.embed_tokens.weight": "token_embd.weight",
    "model.final_layernorm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "norm.weight": "attn_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "pre_ff_layernorm.weight": "ffn_norm.weight",
    **{f"self_attn.{x}_proj.weight": f"attn_{x}.weight" for x in "qkv"},
    "self_attn.o_proj.weight": "attn_output.weight",
    "feed_forward.router.weight": "ffn_gate_inp.weight",
    **{f"feed_forward.{x}_proj.weight": f"ffn_{x}.weight" for x in ("gate", "up", "down")},
    **{f"feed_forward.switch_mlp.{x}_proj.weight": f"ffn_{x}_exps.weight" for x in ("gate", "up", "down")},
    **{f"{mixer}.{name}": ours for mixer in ("mixer", "mamba") for name, ours in MIXER.items()},
}


def converted(weights: dict[str, Array], config: dict[str, Any]) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for name, own, value in renamed(weights, NAMES):
        if own.endswith("conv1d.weight"):
            value = matrix_of_convolution(value)
        elif own.endswith("A_log"):
            value = minus_exp(value)
        tensors[name] = value
    return tensors


def initial(name: str, random: Array) -> Array | None:
    if name.endswith("conv1d.weight"):
        return 0.5 * random
    return 0.5 + 0.5 * random if name.endswith(("A_log", ".D")) else None


def weigh_all(model: Any) -> None:
    """The stock class takes the softmax over the chosen experts, which is not what Jamba was trained with."""
    for layer in model.layers:
        if "router" in layer.feed_forward:
            layer.feed_forward = WeightedExperts(layer.feed_forward)


CASE = Case(
    "mamba",
    "mamba",
    CONFIG,
    METADATA,
    converted,
    initial=initial,
    required=("block_count", "embedding_length", "context_length", "ssm.inner_size", "ssm.time_step_rank"),
)
DENSE = replace(
    CASE,
    id="jamba",
    architecture="jamba",
    config=JAMBA,
    metadata=JAMBA_METADATA,
    required=("block_count", "embedding_length", "attention.head_count", "ssm.time_step_rank"),
    wide=Wide(metadata={"ssm.inner_size": 512}),
)
CASES = [
    CASE,
    replace(
        CASE, id="falcon-mamba", config=CONFIG | {"use_bcdt_rms": True}, metadata=METADATA | {"ssm.dt_b_c_rms": True}
    ),
    DENSE,
    replace(
        DENSE,
        id="jamba-experts",
        proof="as the dense one, with experts weighted by a softmax over all",
        config=JAMBA | {"num_experts": 4, "num_experts_per_tok": 2},
        metadata=JAMBA_METADATA | {"expert_count": 4, "expert_used_count": 2},
        prepare=weigh_all,
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)


def test_long_prompts_are_scanned_in_parts(tmp_path: Path) -> None:
    stock, tensors = floats_of(CASE)
    model = build_model(read_header(write_case(tmp_path / "parts.gguf", CASE, tensors))).model
    cache = make_prompt_cache(model)
    assert mx.abs(model(tokens(70), cache=cache) - stock(tokens(70))).max() < 1e-3


def test_experts_are_weighted_by_a_softmax_over_all() -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((1, 3, 4)).astype(np.float32)
    router, matrices = generator.standard_normal((5, 4)).astype(np.float32), generator.standard_normal((5, 4, 4))

    class Stock:
        num_experts_per_tok = 2

        @staticmethod
        def router(x: mx.array) -> mx.array:
            return x @ mx.array(router).T

        @staticmethod
        def switch_mlp(x: mx.array, chosen: mx.array) -> mx.array:
            picked = mx.array(matrices.astype(np.float32))[chosen]  # [1, 3, 2, 4, 4]
            return (picked @ x[..., None, :, None]).squeeze(-1)

    got = np.array(WeightedExperts(Stock)(mx.array(x)))
    scores = np.exp(x @ router.T)
    weights = scores / scores.sum(-1, keepdims=True)
    for token in range(3):
        best = np.argsort(weights[0, token])[-2:]
        wanted = sum(weights[0, token, e] * (matrices[e] @ x[0, token]) for e in best)
        np.testing.assert_allclose(got[0, token], wanted, rtol=1e-4, atol=1e-5)
