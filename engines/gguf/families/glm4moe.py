"""glm4moe: GLM 4.5 and 4.6 (and Air), with a few dense blocks first, then experts chosen by biased sigmoids and a shared one.

The blocks that predict further tokens, at the end of the file, are left alone.
"""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.families.decoder_slots import in_any_block, rotated_dims, rotated_part, scaled, without
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan
from engines.gguf.families.moe import (
    ATTENTION,
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
from engines.gguf.names import Slot, SlotKind

__all__ = ["GLM4MOE"]


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, GLM4MOE.model_type)
    normed = in_any_block(checkpoint, "attn_q_norm")
    layers, dims = plan.config["num_hidden_layers"], rotated_dims(checkpoint, plan)
    plan = scaled(plan, dims)
    experts = experts_of(checkpoint)
    expect_gating(parameters, SIGMOID)
    dense = parameters.integer("leading_dense_block_count", 0, least=0)
    config = plan.config | {
        "n_routed_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.width,
        "n_shared_experts": parameters.integer("expert_shared_count", 0, least=0) or None,
        "first_k_dense_replace": dense,
        "norm_topk_prob": parameters.flag("expert_weights_norm", False),
        "routed_scaling_factor": parameters.number("expert_weights_scale", 1.0),
        "use_qk_norm": normed,
        "attention_bias": False,  # where there are biases, the leaves have them
        "partial_rotary_factor": rotated_part(dims, plan.config["head_dim"]),
        "rope_scaling": None,  # the plan's own embedding has it
        **groups_of(parameters, experts),
    }
    return replace(
        plan,
        config=config,
        slots=GLM4MOE.slots if normed else without(GLM4MOE.slots, *QK_NORMS),
        layers=dense_and_routed(layers, dense),
        stock_values=("e_score_correction_bias",),
    )


GLM4MOE = Family(
    architecture="glm4moe",
    model_type="glm4_moe",
    slots=(
        *WHOLE,
        *ATTENTION,
        *QK_NORMS,
        Slot("blk.{i}.attn_norm", "model.layers.{i}.input_layernorm", SlotKind.NORM),
        Slot("blk.{i}.post_attention_norm", "model.layers.{i}.post_attention_layernorm", SlotKind.NORM),
        *gated_slots("model.layers.{i}.mlp", only="dense"),
        *ROUTED,
    ),
    plan=_plan,
    gate="silu",
)
