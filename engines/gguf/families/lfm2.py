"""lfm2 and lfm2moe: Liquid's LFM2 and LFM2.5: short convolutions between gates, and some layers with attention.

A layer without KV heads is a convolution. The norm of the output has the name of one of the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from engines.gguf.families.family import Checkpoint, Family, Plan
from engines.gguf.families.recurrent import (
    ATTENTION,
    RECURRENT,
    attention_heads,
    attention_slots,
    both_kinds,
    indices,
    layer_kinds,
    trunk,
    with_states,
)
from engines.gguf.families.shapes import Axes
from engines.gguf.names import EMBEDDING, Slot, SlotKind
from engines.gguf.rope_scaling import stock_scaling
from engines.gguf.transforms import unsqueezed_last

__all__ = ["LFM2", "LFM2MOE"]

_LAYER: Final = "model.layers.{i}"
_FEED_FORWARD: Final = f"{_LAYER}.feed_forward"
_DENSE: Final = "dense"  # layers without experts
_MIXTURE: Final = "mixture"


def _plan(checkpoint: Checkpoint, model_type: str) -> Plan:
    parameters = checkpoint.parameters
    config = trunk(checkpoint, model_type)
    kinds = layer_kinds(checkpoint)
    both_kinds(checkpoint, kinds)
    heads = attention_heads(checkpoint, kinds, config["hidden_size"])
    if heads["head_dim"] * heads["num_attention_heads"] != config["hidden_size"]:
        raise parameters.refusal("attention.key_length", "heads that share the hidden width are supported here")
    parameters.expect("rope.dimension_count", heads["head_dim"])
    stock_scaling(parameters, checkpoint.trained_context, ())
    config |= heads | {
        "norm_eps": parameters.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": parameters.number("rope.freq_base", 10000.0),
        "conv_bias": False,  # a leaf's own
        "conv_L_cache": parameters.integer("shortconv.l_cache", least=2),
        "full_attn_idxs": list(indices(kinds.attention)),
        "intermediate_size": parameters.integer("feed_forward_length"),
    }
    return with_states(checkpoint, config, kinds, 2 * config["num_key_value_heads"] * config["head_dim"])


def _dense(checkpoint: Checkpoint) -> Plan:
    plan = _plan(checkpoint, LFM2.model_type)
    sizes: dict[str, Any] = {
        "block_dim": plan.config["hidden_size"],
        "block_ff_dim": plan.config["intermediate_size"],  # adjusted by the converter
        "block_auto_adjust_ff_dim": False,
        "block_multiple_of": 1,
        "block_ffn_dim_multiplier": 1.0,
    }
    plan.config.update(sizes)
    return plan


def _mixture(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = _plan(checkpoint, LFM2MOE.model_type)
    layers = plan.config["num_hidden_layers"]
    leading = parameters.integer("leading_dense_block_count", 0, least=0, most=layers)
    parameters.expect("expert_gating_func", 2)  # sigmoid
    parameters.expect("expert_weights_norm", 1)
    experts = parameters.integer("expert_count")
    plan.config.update(
        {
            "moe_intermediate_size": parameters.integer("expert_feed_forward_length"),
            "num_experts": experts,
            "num_experts_per_tok": parameters.integer("expert_used_count", most=experts),
            "norm_topk_prob": True,
            "use_expert_bias": True,
            "num_dense_layers": leading,
            "routed_scaling_factor": parameters.number("expert_weights_scale", 1.0),
        }
    )
    parts = {_DENSE: range(leading), _MIXTURE: range(leading, layers)}
    return replace(plan, layers={**plan.layers, **parts})


def _widths(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    return {"gates_and_inputs": 3 * config["hidden_size"]}


_SHAPES: Final[Mapping[str, Axes]] = {
    "conv.in_proj": ("gates_and_inputs", "hidden"),
    "conv.out_proj": ("hidden", "hidden"),
    "conv.conv.weight": ("hidden", "kernel", 1),
}
_TRUNK: Final = (
    Slot(EMBEDDING, "model.embed_tokens", SlotKind.EMBEDDING),
    Slot("token_embd_norm", "model.embedding_norm", SlotKind.NORM),
    Slot("blk.{i}.attn_norm", f"{_LAYER}.operator_norm", SlotKind.NORM),
    Slot("blk.{i}.ffn_norm", f"{_LAYER}.ffn_norm", SlotKind.NORM),
    *attention_slots(f"{_LAYER}.self_attn", output="out_proj"),
    *(
        Slot(f"blk.{{i}}.attn_{x}_norm", f"{_LAYER}.self_attn.{x}_layernorm", SlotKind.NORM, only=ATTENTION)
        for x in "qk"
    ),
    Slot("blk.{i}.shortconv.in_proj", f"{_LAYER}.conv.in_proj", only=RECURRENT),
    Slot("blk.{i}.shortconv.out_proj", f"{_LAYER}.conv.out_proj", only=RECURRENT),
    Slot(
        "blk.{i}.shortconv.conv.weight",
        f"{_LAYER}.conv.conv.weight",
        SlotKind.PARAMETER,
        only=RECURRENT,
        transform=unsqueezed_last,
    ),
)
_NAMES: Final = ("gate", "up", "down")

LFM2 = Family(
    architecture="lfm2",
    model_type="lfm2",
    slots=(
        *_TRUNK,
        Slot("blk.{i}.ffn_gate", f"{_FEED_FORWARD}.w1"),
        Slot("blk.{i}.ffn_up", f"{_FEED_FORWARD}.w3"),
        Slot("blk.{i}.ffn_down", f"{_FEED_FORWARD}.w2"),
    ),
    plan=_dense,
    shapes=_SHAPES,
    widths=_widths,
)
LFM2MOE = Family(
    architecture="lfm2moe",
    model_type="lfm2_moe",
    slots=(
        *_TRUNK,
        *(Slot(f"blk.{{i}}.ffn_{x}", f"{_FEED_FORWARD}.{x}_proj", only=_DENSE) for x in _NAMES),
        Slot("blk.{i}.ffn_gate_inp", f"{_FEED_FORWARD}.gate", only=_MIXTURE),
        Slot("blk.{i}.exp_probs_b.bias", f"{_FEED_FORWARD}.expert_bias", SlotKind.PARAMETER, only=_MIXTURE),
        *(
            Slot(f"blk.{{i}}.ffn_{x}_exps", f"{_FEED_FORWARD}.switch_mlp.{x}_proj", SlotKind.EXPERTS, only=_MIXTURE)
            for x in _NAMES
        ),
    ),
    plan=_mixture,
    shapes=_SHAPES,
    widths=_widths,
)
