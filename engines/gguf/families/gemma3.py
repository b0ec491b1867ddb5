"""gemma3: the text part of Gemma 3.

Every sixth layer attends to everything and is rotated with ``rope.freq_base`` and the file's scaling, the others attend to a
window and are rotated with their own base, unscaled. The converter adds one to every norm's weight, which Gemma's own norm
adds when it runs: plain norms with the file's weights compute the same with an operation less.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan
from engines.gguf.names import Slot, SlotKind

__all__ = ["GEMMA3"]

_PERIOD: Final = 6  # layers; the last of them attends to everything
_WINDOWED_ROPE_BASE: Final = 10000.0
_LAYERS_27B: Final = 62


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, GEMMA3.model_type)
    config = plan.config
    parameters.expect("rope.dimension_count", config["head_dim"])
    layers = config["num_hidden_layers"]
    period = _period(checkpoint, layers)
    window = parameters.integer("attention.sliding_window", most=MAX_CONTEXT)
    config |= {
        "query_pre_attn_scalar": _attention_scalar(config),
        "sliding_window": window,
        "sliding_window_pattern": period,
        "rope_local_base_freq": parameters.number("rope.freq_base_swa", _WINDOWED_ROPE_BASE),
    }
    parameters.expect("attention.scale", config["query_pre_attn_scalar"] ** -0.5)
    windows = tuple(None if (layer + 1) % period == 0 else window for layer in range(layers))
    return replace(plan, windows=windows, plain_norms=True)


def _period(checkpoint: Checkpoint, layers: int) -> int:
    """Every how many layers one attends to everything. The stock class needs a whole period, and all periods alike."""
    parameters, key = checkpoint.parameters, "attention.sliding_window_pattern"
    slides = parameters.integers(key, layers)
    if slides is None:
        period = parameters.integer(key, _PERIOD)
    else:
        period = slides.index(0) + 1 if 0 in slides else layers + 1
        if slides != [int((layer + 1) % period != 0) for layer in range(layers)]:
            raise parameters.refusal(key, "only windows that repeat are supported here")
    if period > layers:
        raise parameters.refusal(
            "block_count", f"a model of fewer layers than its window pattern ({period}) is not supported"
        )
    return period


def _attention_scalar(config: dict[str, Any]) -> float:
    """Scores are divided by its root. No key says it: it is a head's width, but the hidden width per head in the 27B model."""
    if config["num_hidden_layers"] == _LAYERS_27B:
        return float(config["hidden_size"] / config["num_attention_heads"])
    return float(config["head_dim"])


GEMMA3 = Family(
    architecture="gemma3",
    model_type="gemma3_text",
    slots=(
        *DECODER,
        Slot("blk.{i}.attn_q", "model.layers.{i}.self_attn.q_proj"),
        Slot("blk.{i}.attn_k", "model.layers.{i}.self_attn.k_proj"),
        Slot("blk.{i}.attn_v", "model.layers.{i}.self_attn.v_proj"),
        Slot("blk.{i}.attn_q_norm", "model.layers.{i}.self_attn.q_norm", SlotKind.NORM),
        Slot("blk.{i}.attn_k_norm", "model.layers.{i}.self_attn.k_norm", SlotKind.NORM),
        Slot("blk.{i}.post_attention_norm", "model.layers.{i}.post_attention_layernorm", SlotKind.NORM),
        Slot("blk.{i}.ffn_norm", "model.layers.{i}.pre_feedforward_layernorm", SlotKind.NORM),
        Slot("blk.{i}.post_ffw_norm", "model.layers.{i}.post_feedforward_layernorm", SlotKind.NORM),
        Slot("blk.{i}.ffn_gate", "model.layers.{i}.mlp.gate_proj"),
        Slot("blk.{i}.ffn_up", "model.layers.{i}.mlp.up_proj"),
    ),
    plan=_plan,
    gate="gelu_tanh",
)
