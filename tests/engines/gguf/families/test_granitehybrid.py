"""Granite 4 with Mamba 2 layers, dense and with experts, and Bamba, which rotates."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tests.engines.gguf.families.helpers_family import VOCABULARY, Array, Case, checks
from tests.engines.gguf.families.helpers_mamba2 import KEPT_FLOATS, MAMBA2_NAMES, mamba2_converted, mamba2_initial
from tests.engines.gguf.families.helpers_names import renamed

HEADS, WIDTH, STATE = 4, 32, 16
CONFIG: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_bias": False,
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.4,
    "logits_scaling": 0.5,
    "residual_multiplier": 0.8,
    "layer_types": ["mamba", "attention", "mamba"],
    "rms_norm_eps": 1e-5,
    "mamba_n_heads": HEADS,
    "mamba_d_head": WIDTH,
    "mamba_proj_bias": False,
    "mamba_d_state": STATE,
    "mamba_d_conv": 4,
    "mamba_n_groups": 1,
    "mamba_conv_bias": True,
    "position_embedding_type": "nope",
    "time_step_limit": (0.0, math.inf),
    "tie_word_embeddings": False,
}
METADATA: dict[str, Any] = {
    "context_length": 1 << 20,
    "embedding_length": 64,
    "block_count": 3,
    "feed_forward_length": 96,
    "vocab_size": VOCABULARY,
    "attention.head_count": 4,
    "attention.head_count_kv": [0, 2, 0],
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": 16,
    "rope.freq_base": 10000.0,
    "rope.scaling.finetuned": False,
    "attention.scale": 0.4,
    "embedding_scale": 6.0,
    "residual_scale": 0.8,
    "logit_scale": 0.5,
    "expert_count": 0,
    "expert_used_count": 0,
    "expert_shared_feed_forward_length": 96,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": HEADS * WIDTH,
    "ssm.state_size": STATE,
    "ssm.time_step_rank": HEADS,
    "ssm.group_count": 1,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32, "shared_intermediate_size": 64}
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "block_sparse_moe.router.layer.weight": "ffn_gate_inp.weight",
    "shared_mlp.input_linear.weight": "ffn_shexp",  # taken apart below
    "shared_mlp.output_linear.weight": "ffn_down_shexp.weight",
    **{f"mlp.{x}_proj.weight": f"ffn_{x}.weight" for x in ("gate", "up", "down")},
    **{f"block_sparse_moe.switch_mlp.{x}_proj.weight": f"ffn_{x}_exps.weight" for x in ("gate", "up", "down")},
    **{f"mamba.{name}": ours for name, ours in MAMBA2_NAMES.items()},
}


def interleaved(rows: Array, heads: int) -> Array:
    """Rows of each head from halves to pairs that are rotated together."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def converted(weights: dict[str, Array], config: dict[str, Any]) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for name, own, value in renamed(weights, NAMES):
        if own.startswith("mamba."):
            value = mamba2_converted(own.removeprefix("mamba."), value, 1)
        elif "q_proj" in own:
            value = interleaved(value, config["num_attention_heads"])
        elif "k_proj" in own:
            value = interleaved(value, config["num_key_value_heads"])
        elif "input_linear" in own:
            gate, up = np.split(value, 2)
            block = name.removesuffix("ffn_shexp")
            tensors |= {f"{block}ffn_gate_shexp.weight": gate, f"{block}ffn_up_shexp.weight": up}
            continue
        tensors[name] = value
    return tensors


DENSE = Case(
    "granitehybrid",
    "granitehybrid",
    CONFIG,
    METADATA,
    converted,
    floats=KEPT_FLOATS,
    initial=mamba2_initial,
    optional=("ssm_conv1d.bias",),
)
CASES = [
    DENSE,
    replace(
        DENSE,
        id="granitehybrid-rotated",
        light=True,
        config=CONFIG | {"position_embedding_type": "rope", "rope_theta": 10000.0},
        metadata=METADATA | {"rope.scaling.finetuned": True, "context_length": 256},
    ),
    replace(
        DENSE,
        id="granitehybrid-experts",
        config=CONFIG | EXPERTS,
        metadata=METADATA
        | {
            "feed_forward_length": 32,
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_shared_feed_forward_length": 64,
        },
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
