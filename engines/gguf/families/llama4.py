"""llama4: Llama 4 Scout and Maverick, the text part: three of four blocks attend within chunks of 8192 tokens and are rotated, the
others to everything, with queries that grow with their position.

One expert a token, whose input is scaled by a sigmoid, beside a shared one. A cache of chunks holds one row, so these models decode
one request at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan, whole_head_rope
from engines.gguf.families.moe import SIGMOID, expect_gating, expert_slots, experts_of, gated_slots
from engines.gguf.names import EMBEDDING, HEAD, Slot, SlotKind

__all__ = ["LLAMA4"]

_PERIOD = 4
_CHUNK = 8192  # tokens, of all models there are: files do not say
_WITHOUT_QK_NORM = 128  # experts, of Maverick
_LAYER = "language_model.model.layers.{i}"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = whole_head_rope(checkpoint, decoder_plan(checkpoint, LLAMA4.model_type), traditional=True)
    config = plan.config
    layers = config["num_hidden_layers"]
    if layers < _PERIOD:
        raise parameters.refusal("block_count", "a model of fewer layers than its chunk pattern is not supported")
    if parameters.integer("attention.sliding_window", _CHUNK, least=0, most=MAX_CONTEXT) != _CHUNK:
        raise parameters.refusal("attention.sliding_window", f"only chunks of {_CHUNK} tokens are supported here")
    chunked = _CHUNK if plan.context > _CHUNK else None
    experts = experts_of(checkpoint)
    expect_gating(parameters, SIGMOID)
    parameters.expect("expert_weights_scale", 1.0)
    if experts.used != 1:
        raise parameters.refusal("expert_used_count", "one expert a token is supported here")
    step = parameters.integer("interleave_moe_layer_step")
    routed = [layer for layer in range(layers) if (layer + 1) % step == 0]
    text: dict[str, Any] = config | {
        "attention_bias": False,
        "attention_chunk_size": _CHUNK,
        "interleave_moe_layer_step": step,
        "intermediate_size": experts.width,
        "intermediate_size_mlp": config["intermediate_size"],
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "use_qk_norm": experts.count != _WITHOUT_QK_NORM,
    }
    rotated = [layer for layer in range(layers) if (layer + 1) % _PERIOD != 0]
    return replace(
        plan,
        config=config | {"text_config": text},
        windows=tuple(chunked if (layer + 1) % _PERIOD else None for layer in range(layers)),
        layers={
            "dense": [layer for layer in range(layers) if layer not in set(routed)],
            "routed": routed,
            "rotated": rotated,
        },
        ropes=tuple(replace(rope, only="rotated", module=f"{_LAYER}.self_attn.rope") for rope in plan.ropes),
        most_rows=1,
    )


def _widths(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    text = config["text_config"]
    return {"inner": text["intermediate_size_mlp"], "shared_inner": text["intermediate_size"]}


LLAMA4 = Family(
    architecture="llama4",
    model_type="llama4",
    slots=(
        Slot(EMBEDDING, "language_model.model.embed_tokens", SlotKind.EMBEDDING),
        Slot("output_norm", "language_model.model.norm", SlotKind.NORM),
        Slot(HEAD, "language_model.lm_head", optional=True),
        Slot("blk.{i}.attn_norm", f"{_LAYER}.input_layernorm", SlotKind.NORM),
        Slot("blk.{i}.ffn_norm", f"{_LAYER}.post_attention_layernorm", SlotKind.NORM),
        *(
            Slot(f"blk.{{i}}.attn_{stem}", f"{_LAYER}.self_attn.{module}", bias=True)
            for stem, module in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("output", "o_proj"))
        ),
        *gated_slots(f"{_LAYER}.feed_forward", only="dense"),
        *expert_slots(f"{_LAYER}.feed_forward", router="router", experts="experts", only="routed"),
        *gated_slots(f"{_LAYER}.feed_forward.shared_expert", "_shexp", only="routed"),
    ),
    plan=_plan,
    widths=_widths,
)
