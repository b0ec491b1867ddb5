"""granite: IBM's Granite 3 and 4 (dense): a Llama whose embeddings, residuals, scores and logits are scaled.

The converter interleaves rows of Q and K as it does for Llama. ``rope.scaling.finetuned`` is a switch here: false says that
nothing is rotated.
"""

from __future__ import annotations

from engines.gguf.families.decoder_slots import FFN_NORM, GATE_UP, QKV, neighbours_rotate
from engines.gguf.families.family import (
    DECODER,
    Checkpoint,
    Family,
    Plan,
    decoder_plan,
    own_head_width,
    whole_head_rope,
)

__all__ = ["GRANITE"]


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, "granite")
    own_head_width(checkpoint, plan)
    if not parameters.flag("rope.scaling.finetuned", True):
        raise parameters.refusal("rope.scaling.finetuned", "a model without rotary embedding is not supported here")
    head_dim = plan.config["head_dim"]
    plan.config.update(
        {
            "embedding_multiplier": _scale(checkpoint, "embedding_scale", 1.0),
            "residual_multiplier": _scale(checkpoint, "residual_scale", 1.0),
            "attention_multiplier": _scale(checkpoint, "attention.scale", head_dim**-0.5),
            "logits_scaling": parameters.number("logit_scale"),
            "attention_bias": False,
            "mlp_bias": False,
        }
    )
    plan = whole_head_rope(checkpoint, plan, traditional=True)
    return plan if plan.ropes else neighbours_rotate(plan)


def _scale(checkpoint: Checkpoint, key: str, default: float) -> float:
    """A positive number; 0 says, as a missing key, that it is the default."""
    return checkpoint.parameters.any_number(key, 0.0) or default


GRANITE = Family(
    architecture="granite",
    model_type="granite",
    slots=(*DECODER, *QKV, *GATE_UP, FFN_NORM),
    plan=_plan,
    gate="silu",
)
