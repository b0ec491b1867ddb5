"""gpt-oss: every other block attends to a window, the first of each pair; attention has sinks, and everything biases.

Weights of the chosen experts are the softmax of their router logits alone. The stock class makes its own caches.
"""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan
from engines.gguf.families.moe import ATTENTION, SOFTMAX_OF_CHOSEN, WHOLE, expect_gating, expert_slots, experts_of
from engines.gguf.names import Slot, SlotKind

__all__ = ["GPT_OSS"]

_PERIOD = 2


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, GPT_OSS.model_type, scalings=("yarn",))
    config = plan.config
    parameters.expect("rope.dimension_count", config["head_dim"])
    experts = experts_of(checkpoint)
    expect_gating(parameters, SOFTMAX_OF_CHOSEN)
    parameters.expect("expert_weights_scale", 1.0)
    window = parameters.integer("attention.sliding_window", most=MAX_CONTEXT)
    layers = config["num_hidden_layers"]
    slides = [int(layer % _PERIOD == 0) for layer in range(layers)]
    key = "attention.sliding_window_pattern"
    if (parameters.integers(key, layers) or slides) != slides or parameters.integer(key, _PERIOD) != _PERIOD:
        raise parameters.refusal(key, "only a window in every other block, from the first, is supported here")
    if layers < _PERIOD:
        raise parameters.refusal("block_count", "a model of fewer layers than its window pattern is not supported")
    config = config | {
        "intermediate_size": experts.width,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "sliding_window": window,
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
    }
    return replace(plan, config=config, windows=tuple(window if slide else None for slide in slides))


GPT_OSS = Family(
    architecture="gpt-oss",
    model_type="gpt_oss",
    slots=(
        *WHOLE,
        *ATTENTION,
        Slot("blk.{i}.attn_sinks.weight", "model.layers.{i}.self_attn.sinks", SlotKind.PARAMETER),
        Slot("blk.{i}.attn_norm", "model.layers.{i}.input_layernorm", SlotKind.NORM),
        Slot("blk.{i}.post_attention_norm", "model.layers.{i}.post_attention_layernorm", SlotKind.NORM),
        *expert_slots("model.layers.{i}.mlp", router="router", experts="experts", bias=True),
    ),
    plan=_plan,
)
