"""exaone4: EXAONE 4, which normalises what attention and MLP give, and Q and K by head.

The 32B model attends to a window in three layers of four, and rotates nothing in the fourth, which attends to everything; the
1.2B model has no windows and rotates in all layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.decoder_slots import GATE_UP, POST_NORMS, QK_NORMS, QKV, period_of_windows, without
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan, whole_head_rope

__all__ = ["EXAONE4"]

_LAYERS_32B: Final = 64
_WINDOW_32B: Final = 4096
_PERIOD: Final = 4  # layers; the last of them attends to everything


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, "exaone4")
    config = plan.config
    parameters.expect("rope.freq_base_swa", config["rope_theta"])
    layers = config["num_hidden_layers"]
    default = _WINDOW_32B if layers == _LAYERS_32B else 0
    window = parameters.integer("attention.sliding_window", default, least=0, most=MAX_CONTEXT)
    period = period_of_windows(checkpoint, layers, _PERIOD) if window else 1
    plan = whole_head_rope(checkpoint, plan, traditional=False)
    if not window or period == 1:
        config |= {"sliding_window": None, "sliding_window_pattern": None}
        return plan
    if period > layers:
        raise parameters.refusal("attention.sliding_window_pattern", "a model of windows only is not supported here")
    config |= {"sliding_window": window, "sliding_window_pattern": "L" * (period - 1) + "G"}
    windowed = [i for i in range(layers) if (i + 1) % period]
    return replace(
        plan,
        windows=tuple(window if i in windowed else None for i in range(layers)),
        layers={"windowed": windowed},
        ropes=tuple(replace(each, only="windowed") for each in plan.ropes),
    )


EXAONE4 = Family(
    architecture="exaone4",
    model_type="exaone4",
    slots=(*without(DECODER, "blk.{i}.attn_norm"), *QKV, *QK_NORMS, *POST_NORMS, *GATE_UP),
    plan=_plan,
    gate="silu",
)
