"""phi3: Phi 3, 3.5 and 4 (mini and medium), with Q, K and V in one matrix, and gate and up in one, as in the stock class.

Long-context variants have two sets of rotary factors, for contexts up to the one they were first trained with and for longer
ones. Which set rotates is decided by the context that is served, once for all requests, so that cached keys stay valid;
``rope.scaling.attn_factor`` is applied with either.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from engines.errors import CheckpointError
from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.family import (
    DECODER,
    Checkpoint,
    Family,
    Plan,
    decoder_plan,
    own_head_width,
    window_everywhere,
)
from engines.gguf.names import Slot, SlotKind
from engines.gguf.rope_scaling import RopeFactors

__all__ = ["PHI3", "long_rope"]

_LONG: Final = "rope_factors_long.weight"
_SHORT: Final = "rope_factors_short.weight"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, PHI3.model_type, scalings=("longrope",))
    own_head_width(checkpoint, plan)
    head_dim = plan.config["head_dim"]
    dims = parameters.integer("rope.dimension_count", head_dim, most=head_dim)
    if dims % 2:
        raise parameters.error("rope.dimension_count", f"is {dims}; features are rotated in pairs")
    # A hair above the quotient: the stock class multiplies it back and rounds down.
    plan = replace(plan, config=plan.config | {"partial_rotary_factor": math.nextafter(dims / head_dim, 2)})
    return window_everywhere(checkpoint, long_rope(checkpoint, plan, dims))


def long_rope(checkpoint: Checkpoint, plan: Plan, dims: int) -> Plan:
    """The plan with ``dims`` features rotated by the file's long or short factors, by the context that is served; as it is where
    there are none."""
    present = [name for name in (_LONG, _SHORT) if name in checkpoint.header.tensors]
    if not present:
        return plan
    if len(present) == 1:
        raise CheckpointError(f"{checkpoint.header.path}: of '{_LONG}' and '{_SHORT}' one is missing")
    parameters, trained = checkpoint.parameters, checkpoint.trained_context
    original = parameters.integer("rope.scaling.original_context_length", trained, least=2, most=MAX_CONTEXT)
    if original < 2:  # its logarithm is divided by
        raise parameters.error("context_length", f"is {trained}; longer ones are what factors are for")
    stretch = max(1.0, trained / original)
    magnitude = parameters.number("rope.scaling.attn_factor", math.sqrt(1 + math.log(stretch) / math.log(original)))
    factors = RopeFactors(
        tensor=_LONG if plan.context > original else _SHORT,
        dims=dims,
        base=plan.config["rope_theta"],
        traditional=False,
        magnitude=magnitude,
    )
    return replace(plan, ropes=(factors,), tensors=(_LONG, _SHORT))


PHI3 = Family(
    architecture="phi3",
    model_type="phi3",
    slots=(
        *DECODER,
        Slot("blk.{i}.attn_qkv", "model.layers.{i}.self_attn.qkv_proj", bias=True),
        Slot("blk.{i}.ffn_norm", "model.layers.{i}.post_attention_layernorm", SlotKind.NORM),
        Slot("blk.{i}.ffn_up", "model.layers.{i}.mlp.gate_up_proj"),
    ),
    plan=_plan,
)
