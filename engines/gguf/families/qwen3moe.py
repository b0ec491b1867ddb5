"""qwen3moe: Qwen 3 with experts: norms on Q and K, every block routed, weights of the chosen experts normalised."""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.families.decoder_slots import scaled
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

__all__ = ["QWEN3MOE"]


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = whole_head_rope(checkpoint, decoder_plan(checkpoint, QWEN3MOE.model_type), traditional=False)
    experts = experts_of(checkpoint)
    expect_gating(parameters, SOFTMAX)
    parameters.expect("expert_weights_scale", 1.0)
    config = plan.config | {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.width,
        "norm_topk_prob": parameters.flag("expert_weights_norm", True),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    return scaled(replace(plan, config=config))  # the stock class reads a scaling and leaves it


QWEN3MOE = Family(
    architecture="qwen3moe",
    model_type="qwen3_moe",
    slots=(*WHOLE, *NORMS, *ATTENTION, *QK_NORMS, *expert_slots("model.layers.{i}.mlp")),
    plan=_plan,
)
