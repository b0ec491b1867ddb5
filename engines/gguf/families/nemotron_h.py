"""nemotron_h and nemotron_h_moe: NVIDIA's Nemotron-H, Nemotron Nano 2 and 3: a layer is a Mamba 2 layer, attention, or an MLP.

A layer with a feed-forward width is an MLP (or experts), one with KV heads attention, one with neither a Mamba 2 layer. Nothing is
rotated. Blocks that predict further tokens are left alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from engines.gguf.families.family import Checkpoint, Family, Plan
from engines.gguf.families.recurrent import (
    attention_heads,
    attention_slots,
    both_kinds,
    gated_norm_slot,
    has_in_states,
    layer_kinds,
    state_space,
    state_space_slots,
    trunk,
    with_states,
)
from engines.gguf.names import EMBEDDING, HEAD, Slot, SlotKind

__all__ = ["NEMOTRON_H", "NEMOTRON_H_MOE"]

_LAYER: Final = "backbone.layers.{i}"
_MIXER: Final = f"{_LAYER}.mixer"
_MLP: Final = "mlp"  # the set of layers that are one, or experts


def _plan(checkpoint: Checkpoint, mlp: str) -> Plan:
    """``mlp`` is the stock class's letter for a layer with a feed-forward width."""
    parameters = checkpoint.parameters
    config = trunk(checkpoint, "nemotron_h")
    layers = config["num_hidden_layers"]
    kinds = layer_kinds(checkpoint)
    both_kinds(checkpoint, kinds)
    sizes = state_space(checkpoint)
    widths = parameters.per_layer("feed_forward_length", layers)
    found = {width for width in widths if width} or {1}
    if len(found) > 1:
        raise parameters.refusal("feed_forward_length", "MLPs of different widths are not supported")
    eps = parameters.number("attention.layer_norm_rms_epsilon", parameters.number("attention.layer_norm_epsilon", 1e-5))
    for unused in ("rope.dimension_count", "rope.freq_base"):  # nothing is rotated
        parameters.any_number(unused, 0.0)
    config |= attention_heads(checkpoint, kinds, config["hidden_size"]) | {
        "intermediate_size": found.pop(),
        "layer_norm_epsilon": eps,
        "gated_norm_eps": eps,
        "attention_bias": False,  # biases are the leaves' own
        "mamba_proj_bias": False,
        "mlp_bias": False,
        "use_bias": False,
        "use_conv_bias": has_in_states(checkpoint, kinds, "ssm_conv1d.bias"),
        "mamba_num_heads": sizes.heads,
        "mamba_head_dim": sizes.head_width,
        "ssm_state_size": sizes.state,
        "conv_kernel": sizes.kernel,
        "n_groups": sizes.groups,
        "hybrid_override_pattern": [
            "M" if state else "*" if has else mlp for state, has in zip(kinds.recurrent, kinds.attention, strict=True)
        ],
    }
    if any(width and has for width, has in zip(widths, kinds.attention, strict=True)):
        raise parameters.refusal("feed_forward_length", "a layer with attention and an MLP is not supported here")
    plan = with_states(
        checkpoint, config, kinds, 2 * config["num_key_value_heads"] * config["head_dim"], sizes.scan_chunk
    )
    mlps = [i for i, letter in enumerate(config["hybrid_override_pattern"]) if letter == mlp]
    return replace(plan, layers={**plan.layers, _MLP: mlps}, stand_ins="mamba2")


def _dense(checkpoint: Checkpoint) -> Plan:
    return _plan(checkpoint, "-")


def _mixture(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = _plan(checkpoint, "E")
    experts = parameters.integer("expert_count")
    parameters.expect("expert_gating_func", 2)  # sigmoid
    parameters.expect("expert_group_count", 1)
    parameters.expect("expert_group_used_count", 1)
    shared = parameters.integer("expert_shared_count", 1, least=0)
    sizes: dict[str, Any] = {
        "moe_intermediate_size": parameters.integer("expert_feed_forward_length", plan.config["intermediate_size"]),
        "moe_shared_expert_intermediate_size": parameters.integer("expert_shared_feed_forward_length"),
        "moe_latent_size": parameters.integer("moe_latent_size", 0, least=0) or None,
        "n_group": 1,
        "topk_group": 1,
        "n_routed_experts": experts,
        "n_shared_experts": shared or None,
        "num_experts_per_tok": parameters.integer("expert_used_count", most=experts),
        "norm_topk_prob": parameters.flag("expert_weights_norm", False),
        "routed_scaling_factor": parameters.any_number("expert_weights_scale", 0.0) or 1.0,
    }
    plan.config.update(sizes)
    return plan


_TRUNK: Final = (
    Slot(EMBEDDING, "backbone.embeddings", SlotKind.EMBEDDING),
    Slot("output_norm", "backbone.norm_f", SlotKind.NORM),
    Slot(HEAD, "lm_head", optional=True),
    Slot("blk.{i}.attn_norm", f"{_LAYER}.norm", SlotKind.NORM),
    *attention_slots(_MIXER),
    *state_space_slots(_MIXER),
    gated_norm_slot(_MIXER),
)

NEMOTRON_H = Family(
    architecture="nemotron_h",
    model_type="nemotron_h",
    slots=(
        *_TRUNK,
        Slot("blk.{i}.ffn_up", f"{_MIXER}.up_proj", bias=True, only=_MLP),
        Slot("blk.{i}.ffn_down", f"{_MIXER}.down_proj", bias=True, only=_MLP),
    ),
    plan=_dense,
)
NEMOTRON_H_MOE = Family(
    architecture="nemotron_h_moe",
    model_type="nemotron_h",
    slots=(
        *_TRUNK,
        Slot("blk.{i}.ffn_gate_inp.weight", f"{_MIXER}.gate.weight", SlotKind.PARAMETER, only=_MLP),
        Slot("blk.{i}.exp_probs_b.bias", f"{_MIXER}.gate.e_score_correction_bias", SlotKind.PARAMETER, only=_MLP),
        Slot("blk.{i}.ffn_up_exps", f"{_MIXER}.switch_mlp.fc1", SlotKind.EXPERTS, only=_MLP),
        Slot("blk.{i}.ffn_down_exps", f"{_MIXER}.switch_mlp.fc2", SlotKind.EXPERTS, only=_MLP),
        Slot("blk.{i}.ffn_up_shexp", f"{_MIXER}.shared_experts.up_proj", optional=True, only=_MLP),
        Slot("blk.{i}.ffn_down_shexp", f"{_MIXER}.shared_experts.down_proj", optional=True, only=_MLP),
        Slot("blk.{i}.ffn_latent_down", f"{_MIXER}.fc1_latent_proj", optional=True, only=_MLP),
        Slot("blk.{i}.ffn_latent_up", f"{_MIXER}.fc2_latent_proj", optional=True, only=_MLP),
    ),
    plan=_mixture,
)
