"""granitehybrid: IBM's Granite 4 with Mamba 2 layers (H), dense or with experts, and Bamba.

A layer without KV heads is a Mamba 2 layer. ``rope.scaling.finetuned`` is a switch here: false says that nothing is rotated, as
in Granite 4. The converter interleaves rows of Q and K as it does for Llama.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

from engines.gguf.families.family import Checkpoint, Family, Plan
from engines.gguf.families.recurrent import (
    attention_heads,
    attention_slots,
    gated_norm_slot,
    has_in_states,
    indices,
    layer_kinds,
    state_space,
    state_space_slots,
    trunk,
    with_states,
)
from engines.gguf.names import EMBEDDING, HEAD, Slot, SlotKind
from engines.gguf.rope_scaling import stock_scaling

__all__ = ["GRANITEHYBRID"]

_LAYER: Final = "model.layers.{i}"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    config = trunk(checkpoint, GRANITEHYBRID.model_type)
    kinds = layer_kinds(checkpoint)
    if not any(kinds.recurrent):
        raise parameters.refusal(
            "attention.head_count_kv", "a model with attention in all layers is another architecture"
        )
    sizes = state_space(checkpoint)
    heads = attention_heads(checkpoint, kinds, config["hidden_size"])
    head_dim = heads["head_dim"]
    if head_dim * heads["num_attention_heads"] != config["hidden_size"]:
        raise parameters.refusal("attention.key_length", "heads that share the hidden width are supported here")
    eps = parameters.number("attention.layer_norm_rms_epsilon")
    rotates = _rotates(checkpoint, head_dim)
    config |= heads | {
        "rms_norm_eps": eps,
        "gated_norm_eps": eps,
        "intermediate_size": parameters.integer("feed_forward_length"),
        "attention_bias": False,  # biases are the leaves' own
        "mlp_bias": False,
        "embedding_multiplier": parameters.any_number("embedding_scale", 0.0) or 1.0,
        "residual_multiplier": parameters.any_number("residual_scale", 0.0) or 1.0,
        "attention_multiplier": parameters.any_number("attention.scale", 0.0) or head_dim**-0.5,
        "logits_scaling": parameters.any_number("logit_scale", 0.0) or 1.0,
        "layer_types": ["attention" if has else "mamba" for has in kinds.attention],
        "mamba_n_heads": sizes.heads,
        "mamba_d_head": sizes.head_width,
        "mamba_proj_bias": False,
        "mamba_d_state": sizes.state,
        "mamba_d_conv": sizes.kernel,
        "mamba_n_groups": sizes.groups,
        "mamba_conv_bias": has_in_states(checkpoint, kinds, "ssm_conv1d.bias"),
        "time_step_limit": (0.0, math.inf),
        "position_embedding_type": "rope" if rotates else "nope",
        "rope_theta": parameters.number("rope.freq_base", 10000.0),
    }
    plan = with_states(checkpoint, config, kinds, 2 * config["num_key_value_heads"] * head_dim, sizes.scan_chunk)
    told = {f"{_LAYER.format(i=i)}.self_attn.rope.traditional": True for i in indices(kinds.attention) if rotates}
    plan = replace(plan, stand_ins="mamba2", attributes=told)
    return _with_experts(checkpoint, plan)


def _rotates(checkpoint: Checkpoint, head_dim: int) -> bool:
    parameters = checkpoint.parameters
    if not parameters.flag("rope.scaling.finetuned", True):
        parameters.integer("rope.dimension_count", head_dim)  # of no use
        return False
    parameters.expect("rope.dimension_count", head_dim)
    stock_scaling(parameters, checkpoint.trained_context, ())
    return True


def _with_experts(checkpoint: Checkpoint, plan: Plan) -> Plan:
    parameters = checkpoint.parameters
    experts = parameters.integer("expert_count", 0, least=0)
    used = parameters.integer("expert_used_count", 0, least=0, most=experts or 1 << 20)
    shared = parameters.integer("expert_shared_feed_forward_length", 0, least=0)  # also said of dense models
    if experts == 0:
        return plan
    if used == 0 or shared == 0:
        key = "expert_used_count" if used == 0 else "expert_shared_feed_forward_length"
        raise parameters.error(key, "is missing or 0 beside experts")
    width = parameters.integer("expert_feed_forward_length", plan.config["intermediate_size"])
    sizes: dict[str, Any] = {
        "intermediate_size": width,
        "num_local_experts": experts,
        "num_experts_per_tok": used,
        "shared_intermediate_size": shared,
    }
    plan.config.update(sizes)
    return replace(plan, slots=(*_TRUNK, *_EXPERTS))


_TRUNK: Final = (
    Slot(EMBEDDING, "model.embed_tokens", SlotKind.EMBEDDING),
    Slot("output_norm", "model.norm", SlotKind.NORM),
    Slot(HEAD, "lm_head", optional=True),
    Slot("blk.{i}.attn_norm", f"{_LAYER}.input_layernorm", SlotKind.NORM),
    Slot("blk.{i}.ffn_norm", f"{_LAYER}.post_attention_layernorm", SlotKind.NORM),
    *attention_slots(f"{_LAYER}.self_attn"),
    *state_space_slots(f"{_LAYER}.mamba"),
    gated_norm_slot(f"{_LAYER}.mamba"),
)
_NAMES: Final = ("gate", "up", "down")
_EXPERTS: Final = (
    Slot("blk.{i}.ffn_gate_inp", f"{_LAYER}.block_sparse_moe.router.layer"),
    *(
        Slot(f"blk.{{i}}.ffn_{x}_exps", f"{_LAYER}.block_sparse_moe.switch_mlp.{x}_proj", SlotKind.EXPERTS)
        for x in _NAMES
    ),
    Slot(("blk.{i}.ffn_gate_shexp", "blk.{i}.ffn_up_shexp"), f"{_LAYER}.shared_mlp.input_linear"),
    Slot("blk.{i}.ffn_down_shexp", f"{_LAYER}.shared_mlp.output_linear"),
)

GRANITEHYBRID = Family(
    architecture="granitehybrid",
    model_type="granitemoehybrid",
    slots=(*_TRUNK, *(Slot(f"blk.{{i}}.ffn_{x}", f"{_LAYER}.mlp.{x}_proj", bias=True) for x in _NAMES)),
    plan=_plan,
)
