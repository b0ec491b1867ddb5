"""phimoe: Phi 3.5 MoE and Phi mini MoE: layer norms and biases everywhere, and the stock class's sparse mixer as router.

The mixer is what the models were trained with: each of two experts is chosen and weighed among those whose logits are near the
best. Long-context variants have factors as ``phi3`` has.
"""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan, own_head_width
from engines.gguf.families.moe import ATTENTION, NORMS, SOFTMAX, WHOLE, expect_gating, expert_slots, experts_of
from engines.gguf.families.phi3 import long_rope

__all__ = ["PHIMOE"]


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, PHIMOE.model_type, scalings=("longrope",))
    own_head_width(checkpoint, plan)
    head_dim = plan.config["head_dim"]
    parameters.expect("rope.dimension_count", head_dim)
    window = parameters.integer("attention.sliding_window", 0, least=0, most=MAX_CONTEXT)
    if 0 < window < plan.context:
        raise parameters.refusal("attention.sliding_window", "a window is not supported here")
    experts = experts_of(checkpoint, width_key="feed_forward_length")
    expect_gating(parameters, SOFTMAX)
    parameters.expect("expert_weights_scale", 1.0)
    config = plan.config | {
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "rope_scaling": None,  # the factors' embedding takes the stock one's place
    }
    return long_rope(checkpoint, replace(plan, config=config), head_dim)


PHIMOE = Family(
    architecture="phimoe",
    model_type="phimoe",
    slots=(
        *(replace(slot, bias=slot.stem != "token_embd") for slot in (*WHOLE, *NORMS)),
        *ATTENTION,
        *expert_slots("model.layers.{i}.block_sparse_moe"),
    ),
    plan=_plan,
)
