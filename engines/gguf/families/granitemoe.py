"""granitemoe: IBM's Granite 3 with experts: a Mixtral whose embeddings, residuals, scores and logits are scaled.

The converter interleaves rows of Q and K as it does for Llama.
"""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.families.decoder_slots import neighbours_rotate
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan, own_head_width, whole_head_rope
from engines.gguf.families.moe import ATTENTION, NORMS, SOFTMAX, WHOLE, expect_gating, expert_slots, experts_of
from engines.gguf.names import Slot

__all__ = ["GRANITEMOE"]

_BLOCK = "model.layers.{i}.block_sparse_moe"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, GRANITEMOE.model_type)
    own_head_width(checkpoint, plan)
    if not parameters.flag("rope.scaling.finetuned", True):
        raise parameters.refusal("rope.scaling.finetuned", "a model without rotary embedding is not supported here")
    if parameters.integer("expert_shared_feed_forward_length", 0, least=0):
        raise parameters.refusal("expert_shared_feed_forward_length", "the stock class has no shared expert")
    experts = experts_of(checkpoint, width_key="feed_forward_length")
    expect_gating(parameters, SOFTMAX)
    parameters.expect("expert_weights_scale", 1.0)
    config = plan.config | {
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "embedding_multiplier": parameters.any_number("embedding_scale", 0.0) or 1.0,
        "residual_multiplier": parameters.any_number("residual_scale", 0.0) or 1.0,
        "attention_multiplier": parameters.any_number("attention.scale", 0.0) or plan.config["head_dim"] ** -0.5,
        "logits_scaling": parameters.number("logit_scale"),
        "attention_bias": False,  # where there are biases, the leaves have them
    }
    plan = whole_head_rope(checkpoint, replace(plan, config=config), traditional=True)
    return plan if plan.ropes else neighbours_rotate(plan)


GRANITEMOE = Family(
    architecture="granitemoe",
    model_type="granitemoe",
    slots=(
        *WHOLE,
        *NORMS,
        *ATTENTION,
        Slot("blk.{i}.ffn_gate_inp", f"{_BLOCK}.router.layer"),
        *expert_slots(_BLOCK)[1:],
    ),
    plan=_plan,
)
