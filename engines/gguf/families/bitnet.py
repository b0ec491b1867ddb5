"""bitnet: BitNet b1.58: a Llama with a norm before each of a block's two output projections, in ternary weights.

What the gate goes through no key says: the published 2B model squares a ReLU, the earlier ones of other makers have Llama's.
Activations are not rounded to 8 bits first, as the models were trained; llama.cpp does not either.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engines.gguf.families.decoder_slots import BODY, FFN_NORM, GATE_UP, QKV, without
from engines.gguf.families.family import Checkpoint, Family, Plan
from engines.gguf.families.llama_kin import llama_plan
from engines.gguf.names import Slot, SlotKind

__all__ = ["BITNET"]

_2B: Final = (30, 2560)  # layers, width


def _plan(checkpoint: Checkpoint) -> Plan:
    plan = llama_plan(checkpoint, traditional=False)
    config = plan.config
    squared = (config["num_hidden_layers"], config["hidden_size"]) == _2B
    config["hidden_act"] = "relu2" if squared else "silu"
    return replace(plan, stand_ins="bitnet")


BITNET = Family(
    architecture="bitnet",
    model_type="llama",
    slots=(
        *without(BODY, "blk.{i}.attn_output", "blk.{i}.ffn_down"),
        *QKV,
        *GATE_UP,
        FFN_NORM,
        Slot("blk.{i}.attn_sub_norm", "model.layers.{i}.self_attn.o_proj.norm", SlotKind.NORM),
        Slot("blk.{i}.attn_output", "model.layers.{i}.self_attn.o_proj.linear"),
        Slot("blk.{i}.ffn_sub_norm", "model.layers.{i}.mlp.down_proj.norm", SlotKind.NORM),
        Slot("blk.{i}.ffn_down", "model.layers.{i}.mlp.down_proj.linear"),
    ),
    plan=_plan,
    shapes={
        "o_proj.norm": ("attended",),
        "o_proj.linear": ("hidden", "attended"),
        "down_proj.norm": ("inner",),
        "down_proj.linear": ("hidden", "inner"),
    },
)
