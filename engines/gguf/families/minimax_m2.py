"""minimax-m2: MiniMax M2: norms over all heads of Q and of K, a part of each head rotated, experts chosen by biased sigmoids."""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.families.decoder_slots import rotated_dims, scaled
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan
from engines.gguf.families.moe import (
    ATTENTION,
    NORMS,
    QK_NORMS,
    SIGMOID,
    WHOLE,
    correction_bias,
    expect_gating,
    expert_slots,
    experts_of,
)
from engines.gguf.families.shapes import WHOLE_QK_NORMS

__all__ = ["MINIMAX_M2"]

_BLOCK = "model.layers.{i}.block_sparse_moe"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, MINIMAX_M2.model_type)
    experts = experts_of(checkpoint)
    expect_gating(parameters, SIGMOID)
    parameters.expect("expert_weights_scale", 1.0)
    if not parameters.flag("expert_weights_norm", True):
        raise parameters.refusal("expert_weights_norm", "only weights that are normalised are supported here")
    rotated = rotated_dims(checkpoint, plan)
    plan = scaled(plan, rotated)
    config = plan.config | {
        "intermediate_size": experts.width,
        "shared_intermediate_size": 0,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "rotary_dim": rotated,
    }
    return replace(plan, config=config, stock_values=("e_score_correction_bias",))


MINIMAX_M2 = Family(
    architecture="minimax-m2",
    model_type="minimax",
    slots=(
        *WHOLE,
        *NORMS,
        *ATTENTION,
        *QK_NORMS,
        *expert_slots(_BLOCK),
        correction_bias(f"{_BLOCK}.e_score_correction_bias"),
    ),
    plan=_plan,
    shapes=WHOLE_QK_NORMS,
)
