"""apertus: Apertus: norms on Q and K, and an MLP without a gate whose activation has parameters, which are metadata."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from engines.errors import CheckpointError
from engines.gguf.families.decoder_slots import QK_NORMS, QKV, without
from engines.gguf.families.family import (
    DECODER,
    Checkpoint,
    Family,
    Plan,
    decoder_plan,
    own_head_width,
    whole_head_rope,
)
from engines.gguf.names import Slot, SlotKind
from engines.header import GgufArray

__all__ = ["APERTUS"]

_PARAMETERS: Final = ("alpha_n", "alpha_p", "beta", "eps")  # of the activation


def _plan(checkpoint: Checkpoint) -> Plan:
    plan = decoder_plan(checkpoint, "apertus")
    own_head_width(checkpoint, plan)
    layers = plan.config["num_hidden_layers"]
    plan.config.update({"mlp_bias": False, "attention_bias": False, "post_norm": False, "qk_norm": True})
    columns = {name: _activation(checkpoint, name, layers) for name in _PARAMETERS}
    plan.config["xielu"] = [{name: values[i] for name, values in columns.items()} for i in range(layers)]
    return whole_head_rope(checkpoint, replace(plan, stand_ins="apertus"), traditional=False)


def _activation(checkpoint: Checkpoint, name: str, layers: int) -> list[float]:
    """One of the activation's parameters a layer. Their keys do not begin with the architecture's name."""
    values = checkpoint.header.metadata.get(f"xielu.{name}")
    elements = values.tolist() if isinstance(values, GgufArray) else []
    numbers = [each for each in elements if isinstance(each, float) and math.isfinite(each)]
    if len(elements) != layers or len(numbers) != layers:
        raise CheckpointError(f"{checkpoint.header.path}: metadata key 'xielu.{name}' is not {layers} numbers")
    return numbers


APERTUS = Family(
    architecture="apertus",
    model_type="apertus",
    slots=(
        *without(DECODER, "blk.{i}.attn_norm"),
        Slot("blk.{i}.attn_norm", "model.layers.{i}.attention_layernorm", SlotKind.NORM),
        *QKV,
        *QK_NORMS,
        Slot("blk.{i}.ffn_norm", "model.layers.{i}.feedforward_layernorm", SlotKind.NORM),
        Slot("blk.{i}.ffn_up", "model.layers.{i}.mlp.up_proj", bias=True),
    ),
    plan=_plan,
)
