"""kimi-linear: Moonshot's Kimi Linear: Kimi delta attention in most layers, attention through a latent in the others, experts.

A layer without KV heads is one of delta attention. Nothing is rotated: the features that other models of this kind rotate are
used as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan
from engines.gguf.families.recurrent import (
    ATTENTION,
    RECURRENT,
    both_kinds,
    flat,
    indices,
    layer_kinds,
    trunk,
    with_states,
)
from engines.gguf.names import Slot, SlotKind

__all__ = ["KIMI_LINEAR"]

_LAYER: Final = "model.layers.{i}"
_ATTENTION: Final = f"{_LAYER}.self_attn"
_MLP: Final = f"{_LAYER}.mlp"
_DENSE: Final = "dense"  # layers without experts
_MIXTURE: Final = "mixture"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    config = trunk(checkpoint, KIMI_LINEAR.model_type)
    layers = config["num_hidden_layers"]
    kinds = layer_kinds(checkpoint)
    both_kinds(checkpoint, kinds)
    parameters.per_layer("attention.head_count_kv", layers)
    heads = parameters.integer("attention.head_count", most=4096)
    latent, apart = parameters.integer("attention.kv_lora_rank"), parameters.integer("rope.dimension_count")
    key_width = parameters.integer("attention.key_length_mla")
    if key_width <= apart:
        raise parameters.error(
            "attention.key_length_mla", f"is {key_width}, of which {apart} do not come from the latent"
        )
    parameters.expect("attention.key_length", latent + apart)
    parameters.any_number("attention.value_length", 0.0)  # of no layer
    parameters.any_number("rope.freq_base", 0.0)  # nothing is rotated
    config |= {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": key_width,
        "rms_norm_eps": parameters.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": 10000.0,
        "model_max_length": config["max_position_embeddings"],
        "intermediate_size": parameters.integer("feed_forward_length"),
        "linear_attn_config": {
            "kda_layers": [layer + 1 for layer in indices(kinds.recurrent)],
            "num_heads": heads,
            "head_dim": parameters.integer("kda.head_dim"),
            "short_conv_kernel_size": parameters.integer("ssm.conv_kernel", least=2),
        },
        "kv_lora_rank": latent,
        "qk_nope_head_dim": key_width - apart,
        "qk_rope_head_dim": apart,
        "v_head_dim": parameters.integer("attention.value_length_mla"),
        "mla_use_nope": True,
    }
    _experts(checkpoint, config)
    plan = with_states(checkpoint, config, kinds, latent + apart, _STATES_AT_ONCE * kinds.state)
    leading = config["first_k_dense_replace"]
    parts = {_DENSE: range(leading), _MIXTURE: range(leading, layers)}
    return replace(plan, layers={**plan.layers, **parts}, stand_ins="in_parts")


def _experts(checkpoint: Checkpoint, config: dict[str, Any]) -> None:
    parameters = checkpoint.parameters
    experts = parameters.integer("expert_count")
    parameters.expect("expert_group_count", 1)
    parameters.expect("expert_group_used_count", 1)
    parameters.expect("expert_weights_norm", 1)
    config |= {
        "num_experts": experts,
        "num_experts_per_token": parameters.integer("expert_used_count", most=experts),
        "moe_intermediate_size": parameters.integer("expert_feed_forward_length"),
        "num_shared_experts": parameters.integer("expert_shared_count", 0, least=0),
        "moe_router_activation_func": _GATING[parameters.integer("expert_gating_func", 2, most=len(_GATING))],
        "moe_renormalize": True,
        "routed_scaling_factor": parameters.any_number("expert_weights_scale", 0.0) or 1.0,
        "first_k_dense_replace": parameters.integer(
            "leading_dense_block_count", 0, least=0, most=config["num_hidden_layers"]
        ),
        "num_expert_group": 1,
        "topk_group": 1,
    }


_STATES_AT_ONCE: Final = 34  # while a part of a prompt is read: one for each of its tokens
_GATING: Final = {1: "softmax", 2: "sigmoid"}


def _convolution(array: Any, config: Mapping[str, Any]) -> Any:
    """[channels, kernel, 1], whatever axes of one the file has. ValueError for a matrix that lies otherwise."""
    kernel = config["linear_attn_config"]["short_conv_kernel_size"]
    axes = [size for size in array.shape if size > 1]
    if axes[1:] != [kernel]:
        raise ValueError(f"{list(array.shape)} are not channels of {kernel} each")
    return array.reshape(-1, kernel, 1)


def _log_of_decays(array: Any, config: Mapping[str, Any]) -> Any:
    """A = -exp(A_log) to A_log [1, 1, heads, 1]."""
    return (-flat(array, config).reshape(1, 1, -1, 1)).log()


def _widths(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    """Delta nets have Q, K and V of their own width, attention has those of the latent."""
    net = config["linear_attn_config"]
    own = {"net_head": net["head_dim"], "net_kernel": net["short_conv_kernel_size"]}
    return {**own, "key": net["head_dim"], "value": net["head_dim"]} if layer + 1 in net["kda_layers"] else own


_NAMES: Final = ("gate", "up", "down")
_SLOTS: Final = (
    *(slot for slot in DECODER if slot.stem not in ("blk.{i}.attn_output", "blk.{i}.ffn_down")),
    Slot("blk.{i}.attn_output", f"{_ATTENTION}.o_proj"),
    Slot("blk.{i}.ffn_norm", f"{_LAYER}.post_attention_layernorm", SlotKind.NORM),
    Slot("blk.{i}.attn_q", f"{_ATTENTION}.q_proj"),
    *(Slot(f"blk.{{i}}.attn_{x}", f"{_ATTENTION}.{x}_proj", only=RECURRENT) for x in "kv"),
    *(
        Slot(
            f"blk.{{i}}.ssm_conv1d_{x}.weight",
            f"{_ATTENTION}.{x}_conv.conv.weight",
            SlotKind.PARAMETER,
            only=RECURRENT,
            transform=_convolution,
        )
        for x in "qkv"
    ),
    *(Slot(f"blk.{{i}}.ssm_{x}", f"{_ATTENTION}.{x}_proj", only=RECURRENT) for x in ("f_a", "f_b", "g_a", "g_b")),
    Slot("blk.{i}.ssm_beta", f"{_ATTENTION}.b_proj", only=RECURRENT),
    Slot("blk.{i}.ssm_a", f"{_ATTENTION}.A_log", SlotKind.PARAMETER, only=RECURRENT, transform=_log_of_decays),
    Slot("blk.{i}.ssm_dt.bias", f"{_ATTENTION}.dt_bias", SlotKind.PARAMETER, only=RECURRENT),
    Slot("blk.{i}.ssm_norm", f"{_ATTENTION}.o_norm", SlotKind.NORM, only=RECURRENT),
    Slot("blk.{i}.attn_kv_a_mqa", f"{_ATTENTION}.kv_a_proj_with_mqa", only=ATTENTION),
    Slot("blk.{i}.attn_kv_a_norm", f"{_ATTENTION}.kv_a_layernorm", SlotKind.NORM, only=ATTENTION),
    *(Slot(f"blk.{{i}}.ffn_{x}", f"{_MLP}.{x}_proj", only=_DENSE) for x in _NAMES),
    Slot("blk.{i}.ffn_gate_inp", f"{_MLP}.gate", only=_MIXTURE),
    Slot("blk.{i}.exp_probs_b.bias", f"{_MLP}.e_score_correction_bias", SlotKind.PARAMETER, only=_MIXTURE),
    *(Slot(f"blk.{{i}}.ffn_{x}_exps", f"{_MLP}.switch_mlp.{x}_proj", SlotKind.EXPERTS, only=_MIXTURE) for x in _NAMES),
    *(
        Slot(f"blk.{{i}}.ffn_{x}_shexp", f"{_MLP}.shared_experts.{x}_proj", optional=True, only=_MIXTURE)
        for x in _NAMES
    ),
    Slot("blk.{i}.attn_k_b", f"{_ATTENTION}.embed_q", SlotKind.HEADS, only=ATTENTION),
    Slot("blk.{i}.attn_v_b", f"{_ATTENTION}.unembed_out", SlotKind.HEADS, only=ATTENTION),
)

KIMI_LINEAR = Family(
    architecture="kimi-linear",
    model_type="kimi_linear",
    slots=_SLOTS,
    plan=_plan,
    shapes={
        **dict.fromkeys(("q_conv.conv.weight", "k_conv.conv.weight", "v_conv.conv.weight"), ("keys", "net_kernel", 1)),
        **dict.fromkeys(("f_a_proj", "g_a_proj"), ("net_head", "hidden")),
        **dict.fromkeys(("f_b_proj", "g_b_proj"), ("keys", "net_head")),
        "b_proj": ("heads", "hidden"),
        "A_log": (1, 1, "heads", 1),
        "dt_bias": ("keys",),
        "o_norm": ("net_head",),
    },
    widths=_widths,
)
