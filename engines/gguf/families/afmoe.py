"""afmoe: Arcee's Trinity: gated attention, windows in three of four blocks, which alone are rotated, and norms on both sides."""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.decoder_slots import period_of_windows
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan
from engines.gguf.families.moe import (
    ATTENTION,
    QK_NORMS,
    SIGMOID,
    WHOLE,
    correction_bias,
    dense_and_routed,
    expect_gating,
    expert_slots,
    experts_of,
    gated_slots,
    groups_of,
)
from engines.gguf.names import Slot, SlotKind

__all__ = ["AFMOE"]

_PERIOD = 4
_LAYER = "model.layers.{i}"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, AFMOE.model_type)
    parameters.expect("rope.dimension_count", plan.config["head_dim"])
    layers = plan.config["num_hidden_layers"]
    window = parameters.integer("attention.sliding_window", most=MAX_CONTEXT)
    parameters.expect("rope.freq_base_swa", plan.config["rope_theta"])
    period = period_of_windows(checkpoint, layers, _PERIOD)
    if period > layers:
        raise parameters.refusal(
            "block_count", f"a model of fewer layers than its window pattern ({period}) is not supported"
        )
    slides = [(layer + 1) % period != 0 for layer in range(layers)]
    experts = experts_of(checkpoint)
    expect_gating(parameters, SIGMOID)
    dense = parameters.integer("leading_dense_block_count", 0, least=0)
    config = plan.config | {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.width,
        "num_shared_experts": parameters.integer("expert_shared_count", 0, least=0),
        "num_dense_layers": dense,
        "route_norm": parameters.flag("expert_weights_norm", False),
        "route_scale": parameters.number("expert_weights_scale", 1.0),
        "score_func": "sigmoid",
        "sliding_window": window,
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
        "mup_enabled": True,
        **groups_of(parameters, experts),
    }
    return replace(
        plan,
        config=config,
        windows=tuple(window if slide else None for slide in slides),
        layers=dense_and_routed(layers, dense),
        stock_values=("expert_bias",),
    )


AFMOE = Family(
    architecture="afmoe",
    model_type="afmoe",
    slots=(
        *WHOLE,
        *ATTENTION,
        *QK_NORMS,
        Slot("blk.{i}.attn_gate", f"{_LAYER}.self_attn.gate_proj"),
        Slot("blk.{i}.attn_norm", f"{_LAYER}.input_layernorm", SlotKind.NORM),
        Slot("blk.{i}.post_attention_norm", f"{_LAYER}.post_attention_layernorm", SlotKind.NORM),
        Slot("blk.{i}.ffn_norm", f"{_LAYER}.pre_mlp_layernorm", SlotKind.NORM),
        Slot("blk.{i}.post_ffw_norm", f"{_LAYER}.post_mlp_layernorm", SlotKind.NORM),
        *gated_slots(f"{_LAYER}.mlp", only="dense"),
        *expert_slots(f"{_LAYER}.mlp", router="router.gate", experts="experts", only="routed"),
        correction_bias(f"{_LAYER}.mlp.expert_bias", only="routed"),
        *gated_slots(f"{_LAYER}.mlp.shared_experts", "_shexp", only="routed", optional=True),
    ),
    plan=_plan,
    gate="silu",
)
