"""exaone-moe: LG's K-EXAONE: windows in three of four blocks, which alone are rotated; DeepSeek's form of routed blocks."""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.decoder_slots import period_of_windows
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan, whole_head_rope
from engines.gguf.families.moe import (
    ATTENTION,
    NORMS,
    QK_NORMS,
    ROUTED,
    SIGMOID,
    WHOLE,
    dense_and_routed,
    expect_gating,
    experts_of,
    gated_slots,
    groups_of,
)

__all__ = ["EXAONE_MOE"]

_PERIOD = 4


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = whole_head_rope(checkpoint, decoder_plan(checkpoint, EXAONE_MOE.model_type), traditional=False)
    layers = plan.config["num_hidden_layers"]
    window = parameters.integer("attention.sliding_window", most=MAX_CONTEXT)
    parameters.expect("rope.freq_base_swa", plan.config["rope_theta"])
    period = period_of_windows(checkpoint, layers, _PERIOD)
    slides = [(layer + 1) % period != 0 for layer in range(layers)]
    experts = experts_of(checkpoint)
    expect_gating(parameters, SIGMOID)
    dense = parameters.integer("leading_dense_block_count", 0, least=0)
    shared = parameters.integer("expert_shared_count", 0, least=0)
    parameters.expect("expert_shared_feed_forward_length", shared * experts.width)
    config = plan.config | {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.width,
        "num_shared_experts": shared,
        "sliding_window": window,
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
        "is_moe_layer": [layer >= dense for layer in range(layers)],
        "norm_topk_prob": parameters.flag("expert_weights_norm", False),
        "routed_scaling_factor": parameters.number("expert_weights_scale", 1.0),
        **groups_of(parameters, experts),
    }
    rotated = [layer for layer in range(layers) if slides[layer] or not any(slides)]
    return replace(
        plan,
        config=config,
        windows=tuple(window if slide else None for slide in slides),
        layers={**dense_and_routed(layers, dense), "rotated": rotated},
        ropes=tuple(replace(rope, only="rotated") for rope in plan.ropes),
        stock_values=("e_score_correction_bias",),
    )


EXAONE_MOE = Family(
    architecture="exaone-moe",
    model_type="exaone_moe",
    slots=(
        *WHOLE,
        *NORMS,
        *ATTENTION,
        *QK_NORMS,
        *gated_slots("model.layers.{i}.mlp", only="dense"),
        *ROUTED,
    ),
    plan=_plan,
    gate="silu",
)
