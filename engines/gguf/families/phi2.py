"""phi2: Phi 1, 1.5 and 2: one layer norm a block, whose output attention and MLP both take; biases everywhere, the head's too.

Early conversions have Q, K and V in one matrix.
"""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.families.decoder_slots import (
    FUSED_QKV,
    QKV,
    in_any_block,
    rotated_dims,
    rotated_part,
    scaled,
    with_biases,
    without,
)
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan, own_head_width
from engines.gguf.names import HEAD, Slot, SlotKind

__all__ = ["PHI2"]


def _plan(checkpoint: Checkpoint) -> Plan:
    plan = decoder_plan(checkpoint, "phi", epsilon="attention.layer_norm_epsilon")
    own_head_width(checkpoint, plan)
    plan.config["layer_norm_eps"] = plan.config["rms_norm_eps"]
    dims = rotated_dims(checkpoint, plan)
    plan.config["partial_rotary_factor"] = rotated_part(dims, plan.config["head_dim"])
    slots = PHI2.slots
    if in_any_block(checkpoint, "attn_qkv"):
        slots = (*without(slots, *QKV), *FUSED_QKV)
    return scaled(replace(plan, slots=slots), dims)


PHI2 = Family(
    architecture="phi2",
    model_type="phi",
    slots=(
        *with_biases(without(DECODER, HEAD, "output_norm", "blk.{i}.attn_output", "blk.{i}.ffn_down")),
        Slot("output_norm", "model.final_layernorm", SlotKind.NORM, bias=True),
        Slot(HEAD, "lm_head", bias=True),
        *QKV,
        Slot("blk.{i}.attn_output", "model.layers.{i}.self_attn.dense", bias=True),
        Slot("blk.{i}.ffn_up", "model.layers.{i}.mlp.fc1", bias=True),
        Slot("blk.{i}.ffn_down", "model.layers.{i}.mlp.fc2", bias=True),
    ),
    plan=_plan,
)
