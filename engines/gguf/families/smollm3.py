"""smollm3: a Llama that rotates nothing in every fourth layer. No key says so; the runtime of llama.cpp knows it too."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engines.gguf.families.decoder_slots import FFN_NORM, GATE_UP, QKV
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan
from engines.gguf.families.llama_kin import llama_plan

__all__ = ["SMOLLM3"]

_PERIOD: Final = 4  # layers; the last of them rotates nothing


def _plan(checkpoint: Checkpoint) -> Plan:
    plan = llama_plan(checkpoint, traditional=True)
    layers = plan.config["num_hidden_layers"]
    plan.config.update({"model_type": "smollm3", "no_rope_layer_interval": _PERIOD})
    rotating = {"rotating": [i for i in range(layers) if (i + 1) % _PERIOD]}
    factors = tuple(replace(each, only="rotating") for each in plan.ropes)
    return replace(plan, ropes=factors, layers=rotating)


SMOLLM3 = Family(
    architecture="smollm3",
    model_type="smollm3",
    slots=(*DECODER, *QKV, *GATE_UP, FFN_NORM),
    plan=_plan,
    gate="silu",
)
