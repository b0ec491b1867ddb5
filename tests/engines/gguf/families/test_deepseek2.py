"""deepseek2 against mlx-lm's deepseek_v2, deepseek_v3 and glm4_moe_lite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.base import Module

from tests.engines.gguf.families.helpers_family import CONVERTER, Case, Weights, checks
from tests.engines.gguf.families.helpers_moe_names import moe_config, moe_metadata, renamed

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.embed_q": "attn_k_b",
    "self_attn.unembed_out": "attn_v_b",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.switch_mlp.gate_proj": "ffn_gate_exps",
    "mlp.switch_mlp.up_proj": "ffn_up_exps",
    "mlp.switch_mlp.down_proj": "ffn_down_exps",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
HEADS, LATENT, ROTATED, PLAIN, VALUE = 4, 32, 16, 32, 32
YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
YARN_KEYS = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
    "rope.scaling.yarn_log_multiplier": 0.0707,
}


def config(model_type: str, **changes: Any) -> dict[str, Any]:
    return moe_config(
        model_type,
        num_key_value_heads=HEADS,
        rms_norm_eps=1e-6,
        moe_intermediate_size=32,
        n_shared_experts=2,
        n_routed_experts=8,
        num_experts_per_tok=3,
        routed_scaling_factor=2.5,
        kv_lora_rank=LATENT,
        q_lora_rank=64,
        qk_rope_head_dim=ROTATED,
        v_head_dim=VALUE,
        qk_nope_head_dim=PLAIN,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        **changes,
    )


def metadata(stock: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The keys of current files."""
    return moe_metadata(
        stock,
        {
            "attention.head_count_kv": 1,
            "attention.kv_lora_rank": LATENT,
            "attention.q_lora_rank": 64,
            "attention.key_length": LATENT + ROTATED,
            "attention.value_length": LATENT,
            "attention.key_length_mla": PLAIN + ROTATED,
            "attention.value_length_mla": VALUE,
            "rope.dimension_count": ROTATED,
            "leading_dense_block_count": 1,
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_feed_forward_length": 32,
            "expert_shared_count": 2,
            "expert_weights_scale": 2.5,
            **changes,
        },
    )


def with_normalised_weights(model: Any) -> None:
    """The stock router of V2 does not normalise."""
    for layer in model.layers[1:]:
        layer.mlp.gate = Normalised(layer.mlp.gate)


class Normalised(Module):
    def __init__(self, stock: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stock = stock

    def __call__(self, x: mx.array) -> tuple[mx.array, mx.array]:
        chosen, weights = self.stock(x)
        return chosen, 2.5 * weights / weights.sum(axis=-1, keepdims=True)


def whole(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys of files from before the expansion was split."""
    old = {key: value for key, value in keys.items() if not key.endswith("_mla")}
    return old | {
        "attention.head_count_kv": HEADS,
        "attention.key_length": PLAIN + ROTATED,
        "attention.value_length": VALUE,
    }


def split(weights: Weights, stock: dict[str, Any]) -> Weights:
    """kv_b as two tensors of all heads, K transposed."""
    converted = renamed(NAMES)(weights, stock)
    for name in [name for name in converted if "attn_kv_b" in name]:
        both = converted.pop(name).reshape(HEADS, PLAIN + VALUE, LATENT)
        converted[name.replace("kv_b", "k_b")] = both[:, :PLAIN].transpose(0, 2, 1)
        converted[name.replace("kv_b", "v_b")] = both[:, PLAIN:]
    return converted


def joined(convert: Callable[[Weights, dict[str, Any]], Weights]) -> Callable[[Weights, dict[str, Any]], Weights]:
    """The reverse, of classes that have the two."""

    def converted(weights: Weights, stock: dict[str, Any]) -> Weights:
        tensors = convert(weights, stock)
        for name in [name for name in tensors if "attn_k_b" in name]:
            keys, values = tensors.pop(name), tensors.pop(name.replace("k_b", "v_b"))
            both = np.concatenate([keys.transpose(0, 2, 1), values], axis=1)
            tensors[name.replace("k_b", "kv_b")] = both.reshape(-1, LATENT)
        return tensors

    return converted


V2 = config("deepseek_v2", topk_method="greedy", rope_scaling=YARN)
V3 = config("deepseek_v3", norm_topk_prob=True)
GLM = config("glm4_moe_lite", norm_topk_prob=True) | {"rms_norm_eps": 1e-3}
MISTRAL = config("mistral4", norm_topk_prob=True) | {
    "rope_parameters": YARN
    | {
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "rope_theta": 10000.0,
        "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 8,
    },
}
V3_KEYS = metadata(V3, expert_gating_func=2, expert_weights_norm=True)
REQUIRED = ("block_count", "attention.kv_lora_rank", "rope.dimension_count", "expert_used_count")

CASES = [
    Case("deepseek-v3", "deepseek2", V3, V3_KEYS, renamed(NAMES), required=(*REQUIRED, "attention.key_length_mla")),
    Case(
        "deepseek-v2",
        "deepseek2",
        V2,
        metadata(V2, expert_gating_func=1) | YARN_KEYS,
        split,
        rows=(2,),
        required=(*REQUIRED, "attention.value_length_mla"),
    ),
    Case(
        "deepseek-v2-normalised",
        "deepseek2",
        V2,
        metadata(V2, expert_gating_func=1, expert_weights_norm=True) | YARN_KEYS,
        lambda weights, stock: split({name.replace(".stock", ""): value for name, value in weights.items()}, stock),
        prepare=with_normalised_weights,
        light=True,
    ),
    Case(
        "deepseek-v2-lite-whole",
        "deepseek2",
        V2 | {"q_lora_rank": None, "rope_scaling": {"factor": 1.0}},
        {key: value for key, value in whole(metadata(V2)).items() if key != "attention.q_lora_rank"},
        renamed(NAMES),
        light=True,
    ),
    Case(
        "deepseek-v2-groups",
        "deepseek2",
        V2 | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
        metadata(V2, expert_group_count=4, expert_group_used_count=2) | YARN_KEYS,
        split,
        proof=f"{CONVERTER}; llama.cpp scores V2's groups as V3's",
        light=True,
    ),
    Case(
        "deepseek-v3-whole-yarn-groups",
        "deepseek2",
        V3 | {"rope_scaling": YARN, "n_group": 4, "topk_group": 2},
        whole(V3_KEYS) | YARN_KEYS | {"expert_group_count": 4, "expert_group_used_count": 2},
        joined(renamed(NAMES)),
        rows=(2,),
        required=REQUIRED,
    ),
    Case(
        "deepseek-v3-dense",
        "deepseek2",
        V3 | {"n_routed_experts": None, "n_shared_experts": None},
        {
            **{key: value for key, value in V3_KEYS.items() if not key.startswith("expert")},
            "leading_dense_block_count": 3,
            "expert_feed_forward_length": 96,
            "expert_shared_count": 0,
        },
        renamed(NAMES),
        light=True,
    ),
    Case(
        "glm4-moe-lite",
        "deepseek2",
        GLM,
        V3_KEYS | {"attention.layer_norm_rms_epsilon": 1e-3},
        renamed(NAMES),
        light=True,
    ),
]


def fused(weights: Weights, stock: dict[str, Any]) -> Weights:
    """Gates and up projections of experts in one tensor."""
    tensors = renamed(NAMES)(weights, stock)
    for name in [name for name in tensors if "gate_exps" in name]:
        gates, ups = tensors.pop(name), tensors.pop(name.replace("gate", "up"))
        tensors[name.replace("gate", "gate_up")] = np.concatenate([gates, ups], axis=1)
    return tensors


CASES.append(
    Case(
        "mistral4",
        "mistral4",
        MISTRAL,
        metadata(MISTRAL, expert_weights_norm=True)
        | YARN_KEYS
        | {
            "rope.scaling.original_context_length": 8,
            "rope.scaling.yarn_log_multiplier": 0.1,
            "attention.temperature_scale": 0.1,
            "attention.temperature_length": 8,
        },
        fused,
        rows=(2,),
        required=REQUIRED,
    )
)

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
