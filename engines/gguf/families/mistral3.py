"""mistral3: Mistral Small 3.1 and 3.2 (a Llama) and Ministral 3, whose queries grow with their position.

Which of them a file is, ``attention.temperature_scale`` says: a query at position p is multiplied by 1 + scale * ln(1 + floor(p /
``rope.scaling.original_context_length``)). The converter interleaves rows of Q and K as for Llama.
"""

from __future__ import annotations

from typing import Any

from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.decoder_slots import FFN_NORM, GATE_UP, QKV, neighbours_rotate
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan, whole_head_rope
from engines.gguf.families.llama_kin import llama_plan

__all__ = ["MISTRAL3"]


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    growth = parameters.any_number("attention.temperature_scale", 0.0)
    if not growth:
        plan = llama_plan(checkpoint, traditional=True)
        _full_magnitude(checkpoint, plan.config["rope_scaling"])
        return plan
    plan = decoder_plan(checkpoint, "ministral3")
    original = parameters.integer("rope.scaling.original_context_length", most=MAX_CONTEXT)
    parameters.expect("attention.temperature_length", original)
    scaling = plan.config["rope_scaling"]
    _full_magnitude(checkpoint, scaling)
    plan.config["rope_parameters"] = {
        **(scaling or {"rope_type": "default"}),
        "rope_theta": plan.config["rope_theta"],
        "original_max_position_embeddings": original,
        "llama_4_scaling_beta": growth,
    }
    plan = whole_head_rope(checkpoint, plan, traditional=True)
    return plan if plan.ropes else neighbours_rotate(plan)


def _full_magnitude(checkpoint: Checkpoint, scaling: dict[str, Any] | None) -> None:
    """``rope.scaling.yarn_log_multiplier`` is by how much of YaRN's growth of scores a model was trained to do without."""
    multiplier = checkpoint.parameters.any_number("rope.scaling.yarn_log_multiplier", 0.0)
    if scaling is not None and multiplier:
        scaling["mscale_all_dim"] = multiplier


MISTRAL3 = Family(
    architecture="mistral3",
    model_type="llama",
    slots=(*DECODER, *QKV, *GATE_UP, FFN_NORM),
    plan=_plan,
    gate="silu",
)
