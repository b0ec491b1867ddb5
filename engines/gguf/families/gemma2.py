"""gemma and gemma2: the first two generations of Gemma, and what was trained from them (CodeGemma).

Their norms are stored with their offset added, as gemma3's. In gemma2 every second layer attends to a window, and scores and
logits are capped; the stock class knows neither of the windows nor of batches, so its attention is replaced
(``stand_ins/gemma2.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.decoder_slots import (
    BODY,
    FFN_NORM,
    GATE_UP,
    QKV,
    SANDWICH_NORMS,
    period_of_windows,
    scaled,
)
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan

__all__ = ["GEMMA", "GEMMA2"]

_WINDOW: Final = 4096
_PERIOD: Final = 2  # layers; the last of them attends to everything
_LAYERS_27B: Final = 46


def _gemma(checkpoint: Checkpoint) -> Plan:
    plan = decoder_plan(checkpoint, "gemma")
    checkpoint.parameters.expect("rope.dimension_count", plan.config["head_dim"])
    return scaled(replace(plan, plain_norms=True))


def _gemma2(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, "gemma2")
    config = plan.config
    parameters.expect("rope.dimension_count", config["head_dim"])
    parameters.expect("rope.freq_base_swa", config["rope_theta"])
    layers = config["num_hidden_layers"]
    window = parameters.integer("attention.sliding_window", _WINDOW, most=MAX_CONTEXT)
    period = period_of_windows(checkpoint, layers, _PERIOD)
    # No key says what scores are divided by the root of: a head's width, but the hidden width per head in the 27B model.
    per_head = config["hidden_size"] // config["num_attention_heads"]
    scalar = per_head if layers == _LAYERS_27B else config["head_dim"]
    parameters.expect("attention.scale", scalar**-0.5)
    config |= {
        "query_pre_attn_scalar": float(scalar),
        "attn_logit_softcapping": parameters.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": parameters.number("final_logit_softcapping", 30.0),
    }
    windows = tuple(None if (layer + 1) % period == 0 else window for layer in range(layers))
    plan = replace(plan, windows=windows, stock_caches=False, plain_norms=True, stand_ins="gemma2")
    return scaled(plan)


GEMMA = Family(
    architecture="gemma",
    model_type="gemma",
    slots=(*BODY, *QKV, *GATE_UP, FFN_NORM),
    plan=_gemma,
    gate="gelu",
)

GEMMA2 = Family(
    architecture="gemma2",
    model_type="gemma2",
    slots=(*BODY, *QKV, *GATE_UP, *SANDWICH_NORMS),
    plan=_gemma2,
    gate="gelu_tanh",
)
