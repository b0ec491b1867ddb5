"""hunyuan-moe: Tencent's Hunyuan A13B: norms on Q and K after rotation, a shared expert, weights of the chosen ones normalised.

The converter has worked the long-context scaling into ``rope.freq_base``. The stock class is of an older model, whose chosen
expert was one: it does not normalise, so the routed block is our own (``stand_ins/routed.py``). Its head is the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engines.gguf.families.decoder_slots import scaled, without
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
from engines.gguf.names import HEAD, Slot, SlotKind

__all__ = ["HUNYUAN_MOE"]

_LAYER = "model.layers.{i}"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = scaled(decoder_plan(checkpoint, HUNYUAN_MOE.model_type))
    own_head_width(checkpoint, plan)
    parameters.expect("rope.dimension_count", plan.config["head_dim"])
    experts = experts_of(checkpoint)
    expect_gating(parameters, SOFTMAX)
    parameters.expect("expert_weights_scale", 1.0)
    shared = parameters.integer("expert_shared_count", 1, least=0)
    width = parameters.integer("expert_shared_feed_forward_length", plan.config["intermediate_size"])
    config = plan.config | {
        "intermediate_size": width,
        "attention_bias": False,  # where there are biases, the leaves have them
        "moe_topk": experts.used,
        "num_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "num_shared_expert": shared,
        "use_mixed_mlp_moe": shared > 0,
        "use_qk_norm": True,
        "use_cla": False,
        "cla_share_factor": 1,
        "moe_intermediate_size": experts.width,
        "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1.0},
        "norm_topk_prob": parameters.flag("expert_weights_norm", True),
    }
    return replace(plan, config=config, stand_ins="routed", stock_values=("e_score_correction_bias",))


def _widths(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    return {"shared_inner": config["num_shared_expert"] * config["intermediate_size"]}


HUNYUAN_MOE = Family(
    architecture="hunyuan-moe",
    model_type="hunyuan",
    slots=(
        *without(WHOLE, HEAD),
        *NORMS,
        *ATTENTION,
        Slot("blk.{i}.attn_q_norm", f"{_LAYER}.self_attn.query_layernorm", SlotKind.NORM),
        Slot("blk.{i}.attn_k_norm", f"{_LAYER}.self_attn.key_layernorm", SlotKind.NORM),
        *expert_slots(f"{_LAYER}.mlp"),
        *gated_slots(f"{_LAYER}.mlp.shared_experts", "_shexp", optional=True),
    ),
    plan=_plan,
    widths=_widths,
)
