"""olmoe: OLMoE: norms over all heads of Q and of K, every block routed, weights of the chosen experts as they are."""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan, whole_head_rope
from engines.gguf.families.moe import (
    ATTENTION,
    NORMS,
    QK_NORMS,
    SOFTMAX,
    WHOLE,
    expect_gating,
    expert_slots,
    experts_of,
)
from engines.gguf.families.shapes import WHOLE_QK_NORMS

__all__ = ["OLMOE"]


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = whole_head_rope(checkpoint, decoder_plan(checkpoint, OLMOE.model_type), traditional=False)
    experts = experts_of(checkpoint, width_key="feed_forward_length")
    expect_gating(parameters, SOFTMAX)
    parameters.expect("expert_weights_scale", 1.0)
    config = plan.config | {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "norm_topk_prob": parameters.flag("expert_weights_norm", False),
    }
    return replace(plan, config=config)


OLMOE = Family(
    architecture="olmoe",
    model_type="olmoe",
    slots=(*WHOLE, *NORMS, *ATTENTION, *QK_NORMS, *expert_slots("model.layers.{i}.mlp")),
    plan=_plan,
    shapes=WHOLE_QK_NORMS,
)
