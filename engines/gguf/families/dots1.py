"""dots1: dots.llm1: norms on Q and K, a few dense blocks first, DeepSeek's form of routed blocks."""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan, whole_head_rope
from engines.gguf.families.moe import (
    ATTENTION,
    NORMS,
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

__all__ = ["DOTS1"]

_MLP = "model.layers.{i}.mlp"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = whole_head_rope(checkpoint, decoder_plan(checkpoint, DOTS1.model_type), traditional=False)
    experts = experts_of(checkpoint)
    expect_gating(parameters, SIGMOID)
    dense = parameters.integer("leading_dense_block_count", 0, least=0)
    config = plan.config | {
        "n_routed_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.width,
        "n_shared_experts": parameters.integer("expert_shared_count"),
        "first_k_dense_replace": dense,
        "norm_topk_prob": parameters.flag("expert_weights_norm", False),
        "routed_scaling_factor": parameters.number("expert_weights_scale", 1.0),
        **groups_of(parameters, experts),
    }
    sets = dense_and_routed(plan.config["num_hidden_layers"], dense)
    return replace(plan, config=config, layers=sets, stock_values=("e_score_correction_bias",))


DOTS1 = Family(
    architecture="dots1",
    model_type="dots1",
    slots=(
        *WHOLE,
        *NORMS,
        *ATTENTION,
        *QK_NORMS,
        *gated_slots(_MLP, only="dense"),
        Slot("blk.{i}.ffn_gate_inp.weight", f"{_MLP}.gate.weight", SlotKind.PARAMETER, only="routed"),
        correction_bias(f"{_MLP}.gate.e_score_correction_bias", only="routed"),
        *expert_slots(_MLP, experts="experts", only="routed")[1:],
        *gated_slots(f"{_MLP}.shared_experts", "_shexp", only="routed"),
    ),
    plan=_plan,
    gate="silu",
)
