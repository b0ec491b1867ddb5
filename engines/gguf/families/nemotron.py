"""nemotron: Nemotron 3 and 4 and Minitron: layer norms, a squared ReLU without a gate, half of a head rotated.

The converter adds the one to norms that the stock norm adds to its weight; plain layer norms are put in its place.
"""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.families.decoder_slots import QKV, rotated_dims, rotated_part, scaled, with_biases
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan
from engines.gguf.names import Slot, SlotKind

__all__ = ["NEMOTRON"]


def _plan(checkpoint: Checkpoint) -> Plan:
    plan = decoder_plan(checkpoint, "nemotron", epsilon="attention.layer_norm_epsilon")
    config = plan.config
    epsilon = config["rms_norm_eps"]
    checkpoint.parameters.expect("attention.layer_norm_rms_epsilon", epsilon)  # written too, and not used
    dims = rotated_dims(checkpoint, plan)
    config |= {
        "norm_eps": epsilon,
        "hidden_act": "relu2",
        "norm": "layer",
        "partial_rotary_factor": rotated_part(dims, config["head_dim"]),
    }
    return replace(scaled(plan, dims), stand_ins="nemotron")


NEMOTRON = Family(
    architecture="nemotron",
    model_type="nemotron",
    slots=(
        *with_biases(DECODER),
        *QKV,
        Slot("blk.{i}.ffn_norm", "model.layers.{i}.post_attention_layernorm", SlotKind.NORM, bias=True),
        Slot("blk.{i}.ffn_up", "model.layers.{i}.mlp.up_proj", bias=True),
    ),
    plan=_plan,
)
