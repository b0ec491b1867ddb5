"""Kimi Linear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from engines.gguf.model import build_model
from engines.header import read_header
from tests.engines.gguf.families.helpers_family import (
    VOCABULARY,
    Array,
    Case,
    checks,
    floats_of,
    tokens,
    write_case,
)
from tests.engines.gguf.families.helpers_names import minus_exp, renamed

HEADS, WIDTH, LATENT, APART, KEYS, VALUES = 4, 32, 64, 32, 32, 64
CONFIG: dict[str, Any] = {
    "model_type": "kimi_linear",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "intermediate_size": 96,
    "head_dim": 24,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "linear_attn_config": {
        "kda_layers": [1, 3],
        "full_attn_layers": [2],
        "num_heads": HEADS,
        "head_dim": WIDTH,
        "short_conv_kernel_size": 4,
    },
    "model_max_length": 256,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 32,
    "num_shared_experts": 1,
    "routed_scaling_factor": 2.4,
    "first_k_dense_replace": 1,
    "kv_lora_rank": LATENT,
    "qk_nope_head_dim": KEYS,
    "qk_rope_head_dim": APART,
    "v_head_dim": VALUES,
    "mla_use_nope": True,
}
METADATA: dict[str, Any] = {
    "context_length": 256,
    "embedding_length": 64,
    "block_count": 3,
    "feed_forward_length": 96,
    "vocab_size": VOCABULARY,
    "attention.head_count": HEADS,
    "attention.head_count_kv": [0, 1, 0],
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.kv_lora_rank": LATENT,
    "attention.key_length": LATENT + APART,
    "attention.value_length": 24,
    "attention.key_length_mla": KEYS + APART,
    "attention.value_length_mla": VALUES,
    "rope.dimension_count": APART,
    "rope.freq_base": 10000.0,
    "ssm.conv_kernel": 4,
    "kda.head_dim": WIDTH,
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "expert_weights_scale": 2.4,
    "leading_dense_block_count": 1,
}
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    **{f"self_attn.{x}_proj.weight": f"attn_{x}.weight" for x in "qkv"},
    **{f"self_attn.{x}_conv.conv.weight": f"ssm_conv1d_{x}.weight" for x in "qkv"},
    **{f"self_attn.{x}_proj.weight": f"ssm_{x}.weight" for x in ("f_a", "f_b", "g_a", "g_b")},
    "self_attn.b_proj.weight": "ssm_beta.weight",
    "self_attn.A_log": "ssm_a",
    "self_attn.dt_bias": "ssm_dt.bias",
    "self_attn.o_norm.weight": "ssm_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "self_attn.embed_q.weight": "attn_k_b.weight",
    "self_attn.unembed_out.weight": "attn_v_b.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.e_score_correction_bias": "exp_probs_b.bias",
    **{f"mlp.{x}_proj.weight": f"ffn_{x}.weight" for x in ("gate", "up", "down")},
    **{f"mlp.switch_mlp.{x}_proj.weight": f"ffn_{x}_exps.weight" for x in ("gate", "up", "down")},
    **{f"mlp.shared_experts.{x}_proj.weight": f"ffn_{x}_shexp.weight" for x in ("gate", "up", "down")},
}


def converted(weights: dict[str, Array], config: dict[str, Any]) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for name, own, value in renamed(weights, NAMES):
        if own.endswith("conv.weight"):
            value = value.reshape(1, HEADS * WIDTH, 1, 4)
        elif own.endswith("A_log"):
            value = minus_exp(value)
        tensors[name] = value
    return tensors


def initial(name: str, random: Array) -> Array | None:
    if name.endswith("conv.weight"):
        return 0.5 * random
    return 0.5 + 0.5 * random if name.endswith("A_log") else None


CASE = Case("kimi-linear", "kimi-linear", CONFIG, METADATA, converted, initial=initial)
CASES = [CASE]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)


def test_long_prompts_are_read_in_parts(tmp_path: Path) -> None:
    stock, tensors = floats_of(CASE)
    model = build_model(read_header(write_case(tmp_path / "parts.gguf", CASE, tensors))).model
    ids = tokens(70)
    cache = make_prompt_cache(model)
    assert mx.abs(model(ids, cache=cache) - stock(ids)).max() < 1e-3
    assert cache[0][3].shape == (1, HEADS, WIDTH, WIDTH)
