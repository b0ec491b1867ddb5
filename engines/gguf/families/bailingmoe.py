"""bailingmoe and bailingmoe2: Ling and Ring, 1 and 2.

The first has Q, K and V apart, rows of Q and K interleaved by the converter, softmax scores, and every block routed. The second has
them in one matrix, norms on Q and K, a part of each head rotated, a few dense blocks first, and biased sigmoids by groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engines.gguf.families.decoder_slots import rotated_dims
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan, own_head_width
from engines.gguf.families.moe import (
    SIGMOID,
    SOFTMAX,
    Experts,
    correction_bias,
    dense_and_routed,
    expect_gating,
    expert_slots,
    experts_of,
    gated_slots,
    groups_of,
)
from engines.gguf.names import EMBEDDING, HEAD, Slot, SlotKind

__all__ = ["BAILINGMOE", "BAILINGMOE2"]

_MLP = "model.layers.{i}.mlp"
_ATTENTION = "model.layers.{i}.attention"


def _shared(checkpoint: Checkpoint, model_type: str, scalings: tuple[str, ...]) -> tuple[Plan, Experts]:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, model_type, scalings=scalings)
    own_head_width(checkpoint, plan)
    experts = experts_of(checkpoint)
    if experts.used < 2:  # the stock class adds experts up in a compiled function, which MLX ends the process for
        raise parameters.refusal("expert_used_count", "two experts a token or more are supported here")
    dense = parameters.integer("leading_dense_block_count", 0, least=0)
    config = plan.config | {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.width,
        "num_shared_experts": parameters.integer("expert_shared_count", 0, least=0),
        "first_k_dense_replace": dense,
        "norm_topk_prob": parameters.flag("expert_weights_norm", False),
        "routed_scaling_factor": parameters.number("expert_weights_scale", 1.0),
        "norm_head": False,  # the converter has normalised it
    }
    layers = dense_and_routed(config["num_hidden_layers"], dense)
    return replace(plan, config=config, layers=layers), experts


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan, experts = _shared(checkpoint, BAILINGMOE.model_type, ("linear", "yarn"))
    parameters.expect("rope.dimension_count", plan.config["head_dim"])
    expect_gating(parameters, SOFTMAX)
    layers = plan.config["num_hidden_layers"]
    attributes = {f"model.layers.{i}.attention.rope.traditional": True for i in range(layers)}
    config = plan.config | {"score_function": "softmax", **groups_of(parameters, experts)}
    return replace(plan, config=config, attributes=attributes)


def _plan2(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan, experts = _shared(checkpoint, BAILINGMOE2.model_type, ("linear", "yarn"))
    expect_gating(parameters, SIGMOID)
    config = plan.config | {
        "score_function": "sigmoid",
        "use_qk_norm": True,
        "rotary_dim": rotated_dims(checkpoint, plan),
        "moe_router_enable_expert_bias": True,
        "moe_shared_expert_intermediate_size": parameters.integer("expert_shared_feed_forward_length", experts.width),
        **groups_of(parameters, experts),
    }
    return replace(plan, config=config, stock_values=("expert_bias",))


_COMMON = (
    Slot(EMBEDDING, "model.word_embeddings", SlotKind.EMBEDDING),
    Slot("output_norm", "model.norm", SlotKind.NORM),
    Slot(HEAD, "lm_head", optional=True),
    Slot("blk.{i}.attn_norm", "model.layers.{i}.input_layernorm", SlotKind.NORM),
    Slot("blk.{i}.ffn_norm", "model.layers.{i}.post_attention_layernorm", SlotKind.NORM),
    Slot("blk.{i}.attn_output", f"{_ATTENTION}.dense", bias=True),
    *gated_slots(_MLP, only="dense"),
    *expert_slots(_MLP, router="gate.gate_proj", only="routed"),
    *gated_slots(f"{_MLP}.shared_experts", "_shexp", only="routed", optional=True),
)


def _widths(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    each = config.get("moe_shared_expert_intermediate_size", config["moe_intermediate_size"])
    return {"shared_inner": each * config["num_shared_experts"]}


BAILINGMOE = Family(
    architecture="bailingmoe",
    model_type="bailing_moe",
    slots=(
        *_COMMON,
        Slot(tuple(f"blk.{{i}}.attn_{part}" for part in "qkv"), f"{_ATTENTION}.query_key_value", bias=True),
    ),
    plan=_plan,
    gate="silu",
    widths=_widths,
)

BAILINGMOE2 = Family(
    architecture="bailingmoe2",
    model_type="bailing_moe",
    slots=(
        *_COMMON,
        Slot("blk.{i}.attn_qkv", f"{_ATTENTION}.query_key_value", bias=True),
        Slot("blk.{i}.attn_q_norm", f"{_ATTENTION}.query_layernorm", SlotKind.NORM),
        Slot("blk.{i}.attn_k_norm", f"{_ATTENTION}.key_layernorm", SlotKind.NORM),
        correction_bias(f"{_MLP}.gate.expert_bias", only="routed"),
    ),
    plan=_plan2,
    gate="silu",
    widths=_widths,
)
