"""starcoder2: StarCoder 2: layer norms and biases everywhere, and an MLP without a gate."""

from __future__ import annotations

from engines.gguf.families.decoder_slots import QKV, scaled, with_biases, without
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan, own_head_width
from engines.gguf.names import Slot, SlotKind

__all__ = ["STARCODER2"]


def _plan(checkpoint: Checkpoint) -> Plan:
    plan = decoder_plan(checkpoint, "starcoder2", epsilon="attention.layer_norm_epsilon")
    own_head_width(checkpoint, plan)
    checkpoint.parameters.expect("rope.dimension_count", plan.config["head_dim"])
    plan.config["norm_epsilon"] = plan.config["rms_norm_eps"]
    return scaled(plan)


STARCODER2 = Family(
    architecture="starcoder2",
    model_type="starcoder2",
    slots=(
        *with_biases(without(DECODER, "blk.{i}.ffn_down")),
        *QKV,
        Slot("blk.{i}.ffn_norm", "model.layers.{i}.post_attention_layernorm", SlotKind.NORM, bias=True),
        Slot("blk.{i}.ffn_up", "model.layers.{i}.mlp.c_fc", bias=True),
        Slot("blk.{i}.ffn_down", "model.layers.{i}.mlp.c_proj", bias=True),
    ),
    plan=_plan,
)
