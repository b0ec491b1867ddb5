"""Mixtral: ``llama`` files that have experts. As in dense ones, rows of Q and K lie in the order in which they are rotated."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engines.gguf.families.decoder_slots import scaled
from engines.gguf.families.family import (
    Checkpoint,
    Plan,
    decoder_plan,
    own_head_width,
    whole_head_rope,
    window_everywhere,
)
from engines.gguf.families.moe import ATTENTION, NORMS, SOFTMAX, WHOLE, expect_gating, expert_slots, experts_of

__all__ = ["mixtral_plan"]

_SLOTS: Final = (*WHOLE, *NORMS, *ATTENTION, *expert_slots("model.layers.{i}.block_sparse_moe"))


def mixtral_plan(checkpoint: Checkpoint) -> Plan:
    """The plan of a ``llama`` checkpoint with experts. The weights of the chosen ones are the softmax of their router logits,
    which is the same as that of all, divided by the chosen ones' sum."""
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, "mixtral")
    own_head_width(checkpoint, plan)
    experts = experts_of(checkpoint, width_key="feed_forward_length")
    expect_gating(parameters, SOFTMAX)
    parameters.expect("expert_weights_scale", 1.0)
    if not parameters.flag("expert_weights_norm", True):
        raise parameters.refusal("expert_weights_norm", "only weights that are normalised are supported here")
    config = plan.config | {
        "rope_traditional": True,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.used,
    }
    plan = replace(plan, config=config, slots=_SLOTS)
    plan = scaled(whole_head_rope(checkpoint, plan, traditional=True), traditional=True)
    return window_everywhere(checkpoint, plan)
