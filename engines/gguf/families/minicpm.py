"""minicpm: MiniCPM 1B and 2B: what Granite computes, its scales of embeddings, residuals and logits under the same keys.

Early conversions have none of these keys: the scales are then those of the models there were.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engines.gguf.families.decoder_slots import neighbours_rotate
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan, own_head_width
from engines.gguf.families.granite import GRANITE
from engines.gguf.families.phi3 import long_rope

__all__ = ["MINICPM"]

_EMBEDDING: Final = 12.0
_DEPTH: Final = 1.4  # divided by the root of the number of layers
_BASE_WIDTH: Final = 256  # by which the width is divided for the logits


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, "granite", scalings=("linear", "longrope"))
    own_head_width(checkpoint, plan)
    config = plan.config
    parameters.expect("rope.dimension_count", config["head_dim"])
    depth = _DEPTH / config["num_hidden_layers"] ** 0.5
    config |= {
        "embedding_multiplier": parameters.number("embedding_scale", _EMBEDDING),
        "residual_multiplier": parameters.number("residual_scale", depth),
        "attention_multiplier": config["head_dim"] ** -0.5,
        "logits_scaling": parameters.number("logit_scale", config["hidden_size"] / _BASE_WIDTH),
        "attention_bias": False,
        "mlp_bias": False,
    }
    plan = long_rope(checkpoint, plan, config["head_dim"])
    if plan.ropes:
        return replace(plan, ropes=tuple(replace(factors, traditional=True) for factors in plan.ropes))
    return neighbours_rotate(plan)


MINICPM = Family(
    architecture="minicpm",
    model_type="granite",
    slots=GRANITE.slots,
    plan=_plan,
    gate="silu",
)
