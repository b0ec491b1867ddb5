"""olmo2: OLMo 2, and OLMo 3, which attends to windows in three layers of four.

What attention and MLP give is normalised, and Q and K over all their heads at once. Rotary scaling is of OLMo 3's full layers
only.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from engines.errors import UnsupportedModel
from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.decoder_slots import GATE_UP, POST_NORMS, QK_NORMS, QKV, period_of_windows, without
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan, whole_head_rope
from engines.gguf.families.shapes import WHOLE_QK_NORMS
from engines.gguf.names import ROPE_FREQUENCIES

__all__ = ["OLMO2"]

_PERIOD: Final = 4  # layers; the last of them attends to everything


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, "olmo2")
    config = plan.config
    scaling = config["rope_scaling"]
    if scaling is not None and scaling["rope_type"] == "yarn":
        # Written though it is what follows from the factor.
        parameters.expect("rope.scaling.yarn_attn_factor", 1 + 0.1 * math.log(scaling["factor"]))
    window = parameters.integer("attention.sliding_window", 0, least=0, most=MAX_CONTEXT)
    if not window:
        return whole_head_rope(checkpoint, plan, traditional=False)
    parameters.expect("rope.dimension_count", config["head_dim"])
    parameters.expect("rope.freq_base_swa", config["rope_theta"])
    layers = config["num_hidden_layers"]
    slides = parameters.integers("attention.sliding_window_pattern", layers)
    if slides is None:
        period = period_of_windows(checkpoint, layers, _PERIOD)
        slides = [int((i + 1) % period != 0) for i in range(layers)]
    if len(set(slides)) != 2:
        raise parameters.refusal("attention.sliding_window_pattern", "layers with and without are needed here")
    if ROPE_FREQUENCIES in checkpoint.header.tensors:
        raise UnsupportedModel(f"{checkpoint.header.path}: '{ROPE_FREQUENCIES}' beside windows is not supported")
    config |= {
        "model_type": "olmo3",
        "sliding_window": window,
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
    }
    return replace(plan, windows=tuple(window if slide else None for slide in slides))


OLMO2 = Family(
    architecture="olmo2",
    model_type="olmo2",
    slots=(*without(DECODER, "blk.{i}.attn_norm"), *QKV, *QK_NORMS, *POST_NORMS, *GATE_UP),
    plan=_plan,
    gate="silu",
    shapes=WHOLE_QK_NORMS,
)
