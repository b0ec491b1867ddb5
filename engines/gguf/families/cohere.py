"""command-r and cohere2: Cohere's Command and Aya models.

Attention and MLP take the same normalised input and are added at once; the head is the embedding, and logits are scaled.
Neighbouring features are rotated together. In cohere2 the last of every four layers attends to everything and rotates nothing,
the others attend to a window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.decoder_slots import (
    BODY,
    GATE_UP,
    QK_NORMS,
    QKV,
    in_any_block,
    period_of_windows,
    scaled,
    without,
)
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan, own_head_width
from engines.gguf.names import Slot

__all__ = ["COHERE2", "COMMAND_R"]

_PERIOD: Final = 4
_PROJECTIONS: Final[tuple[Slot, ...]] = (*BODY, *QKV, *GATE_UP)


def _command_r(checkpoint: Checkpoint) -> Plan:
    plan = _common(checkpoint, "cohere")
    plan.config["use_qk_norm"] = in_any_block(checkpoint, "attn_q_norm")
    slots = COMMAND_R.slots if plan.config["use_qk_norm"] else without(COMMAND_R.slots, *QK_NORMS)
    return scaled(replace(plan, slots=slots), traditional=True)


def _cohere2(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = _common(checkpoint, "cohere2")
    layers = plan.config["num_hidden_layers"]
    parameters.expect("rope.freq_base_swa", plan.config["rope_theta"])
    window = parameters.integer("attention.sliding_window", most=MAX_CONTEXT)
    period = period_of_windows(checkpoint, layers, _PERIOD)
    if period > layers:
        raise parameters.refusal(
            "block_count", f"a model of fewer layers than its window pattern ({period}) is not supported"
        )
    plan.config.update({"sliding_window": window, "sliding_window_pattern": period})
    windows = tuple(None if (i + 1) % period == 0 else window for i in range(layers))
    return scaled(replace(plan, windows=windows), traditional=True)


def _common(checkpoint: Checkpoint, model_type: str) -> Plan:
    plan = decoder_plan(checkpoint, model_type, epsilon="attention.layer_norm_epsilon")
    own_head_width(checkpoint, plan)
    config = plan.config
    checkpoint.parameters.expect("rope.dimension_count", config["head_dim"])
    # 0 is llama.cpp's way to say that nothing is scaled.
    config["logit_scale"] = checkpoint.parameters.any_number("logit_scale", 0.0) or 1.0
    config["layer_norm_eps"] = config["rms_norm_eps"]
    return plan


COMMAND_R = Family(
    architecture="command-r",
    model_type="cohere",
    slots=(*_PROJECTIONS, *QK_NORMS),
    plan=_command_r,
    gate="silu",
    shapes={"q_norm": ("heads", "key"), "k_norm": ("kv_heads", "key")},
)

COHERE2 = Family(
    architecture="cohere2",
    model_type="cohere2",
    slots=_PROJECTIONS,
    plan=_cohere2,
    gate="silu",
)
