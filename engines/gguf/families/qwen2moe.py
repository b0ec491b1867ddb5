"""qwen2moe: Qwen 1.5 and 2 with experts, and one that every token gets, as far as a gate of its own lets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engines.gguf.families.decoder_slots import scaled
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan, own_head_width
from engines.gguf.families.moe import (
    ATTENTION,
    NORMS,
    SOFTMAX,
    WHOLE,
    expect_gating,
    expert_slots,
    experts_of,
    gated_slots,
)
from engines.gguf.names import Slot

__all__ = ["QWEN2MOE"]


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, QWEN2MOE.model_type)
    own_head_width(checkpoint, plan)
    parameters.expect("rope.dimension_count", plan.config["head_dim"])
    experts = experts_of(checkpoint)
    expect_gating(parameters, SOFTMAX)
    parameters.expect("expert_weights_scale", 1.0)
    if parameters.flag("expert_weights_norm", False):
        raise parameters.refusal("expert_weights_norm", "weights that are normalised are not supported here")
    config = plan.config | {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.width,
        "shared_expert_intermediate_size": parameters.integer(
            "expert_shared_feed_forward_length", plan.config["intermediate_size"]
        ),
    }
    return scaled(replace(plan, config=config))


def _as_matrix(array: Any, config: Mapping[str, Any]) -> Any:
    """A vector, or its bytes, as a matrix of one row."""
    return array.reshape(1, -1)


QWEN2MOE = Family(
    architecture="qwen2moe",
    model_type="qwen2_moe",
    slots=(
        *WHOLE,
        *NORMS,
        *ATTENTION,
        *expert_slots("model.layers.{i}.mlp"),
        *gated_slots("model.layers.{i}.mlp.shared_expert", "_shexp"),
        Slot("blk.{i}.ffn_gate_inp_shexp", "model.layers.{i}.mlp.shared_expert_gate", transform=_as_matrix),
    ),
    plan=_plan,
    gate="silu",
)
