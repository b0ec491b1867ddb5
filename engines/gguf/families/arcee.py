"""arcee: AFM 4.5B: a Llama whose MLP has no gate but a squared ReLU.

mlx-lm's nemotron computes that with plain RMS norms in the place of its own; rows of Q and K are interleaved by the converter.
"""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.families.decoder_slots import FFN_NORM, QKV, neighbours_rotate, scaled
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan
from engines.gguf.names import Slot

__all__ = ["ARCEE"]


def _plan(checkpoint: Checkpoint) -> Plan:
    plan = decoder_plan(checkpoint, "nemotron")
    config = plan.config
    checkpoint.parameters.expect("rope.dimension_count", config["head_dim"])
    config |= {"norm_eps": config["rms_norm_eps"], "hidden_act": "relu2", "partial_rotary_factor": 1.0, "norm": "rms"}
    return replace(neighbours_rotate(scaled(plan, traditional=True)), stand_ins="nemotron")


ARCEE = Family(
    architecture="arcee",
    model_type="nemotron",
    slots=(*DECODER, *QKV, FFN_NORM, Slot("blk.{i}.ffn_up", "model.layers.{i}.mlp.up_proj", bias=True)),
    plan=_plan,
)
