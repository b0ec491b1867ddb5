"""falcon-h1: TII's Falcon-H1: every layer has attention and a Mamba 2 layer side by side, then an MLP.

The converter multiplies the model's many multipliers into its weights, so here all of them are one. The norm before the MLP is a
tensor whose name has no suffix.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from engines.gguf.families.family import Checkpoint, Family, Plan
from engines.gguf.families.recurrent import (
    attention_heads,
    attention_slots,
    gated_norm_slot,
    has_in_states,
    layer_kinds,
    state_space,
    state_space_slots,
    trunk,
    with_states,
)
from engines.gguf.names import EMBEDDING, HEAD, Slot, SlotKind
from engines.gguf.rope_scaling import stock_scaling

__all__ = ["FALCON_H1"]

_LAYER: Final = "model.layers.{i}"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    config = trunk(checkpoint, FALCON_H1.model_type)
    kinds = layer_kinds(checkpoint)
    sizes = state_space(checkpoint)
    heads = attention_heads(checkpoint, kinds, config["hidden_size"])
    parameters.expect("rope.dimension_count", heads["head_dim"])
    eps = parameters.number("attention.layer_norm_rms_epsilon")
    multipliers: dict[str, Any] = dict.fromkeys(_MULTIPLIERS, 1.0)
    config |= (
        heads
        | multipliers
        | {
            "rms_norm_eps": eps,
            "gated_norm_eps": eps,
            "intermediate_size": parameters.integer("feed_forward_length"),
            "rope_theta": parameters.number("rope.freq_base", 10000.0),
            "rope_scaling": stock_scaling(parameters, checkpoint.trained_context, ("linear", "yarn")),
            "attention_bias": False,  # biases are the leaves' own
            "mlp_bias": False,
            "projectors_bias": False,
            "mamba_proj_bias": False,
            "mamba_conv_bias": has_in_states(checkpoint, kinds, "ssm_conv1d.bias"),
            "mamba_d_conv": sizes.kernel,
            "mamba_d_head": sizes.head_width,
            "mamba_d_ssm": sizes.inner,
            "mamba_d_state": sizes.state,
            "mamba_n_groups": sizes.groups,
            "mamba_n_heads": sizes.heads,
            "mamba_norm_before_gate": False,
            "mamba_rms_norm": has_in_states(checkpoint, kinds, "ssm_norm.weight"),
            "mlp_multipliers": [1.0, 1.0],
            "ssm_multipliers": [1.0] * 5,
        }
    )
    plan = with_states(
        checkpoint, config, kinds, 2 * config["num_key_value_heads"] * config["head_dim"], sizes.scan_chunk
    )
    return replace(plan, stand_ins="mamba2")


_MULTIPLIERS: Final = (
    "attention_in_multiplier",
    "attention_out_multiplier",
    "embedding_multiplier",
    "key_multiplier",
    "lm_head_multiplier",
    "ssm_in_multiplier",
    "ssm_out_multiplier",
)

FALCON_H1 = Family(
    architecture="falcon-h1",
    model_type="falcon_h1",
    slots=(
        Slot(EMBEDDING, "model.embed_tokens", SlotKind.EMBEDDING),
        Slot("output_norm", "model.final_layernorm", SlotKind.NORM),
        Slot(HEAD, "lm_head", optional=True),
        Slot("blk.{i}.attn_norm", f"{_LAYER}.input_layernorm", SlotKind.NORM),
        Slot("blk.{i}.ffn_norm", f"{_LAYER}.pre_ff_layernorm.weight", SlotKind.PARAMETER),
        *attention_slots(f"{_LAYER}.self_attn"),
        *state_space_slots(f"{_LAYER}.mamba"),
        gated_norm_slot(f"{_LAYER}.mamba", optional=True),
        *(Slot(f"blk.{{i}}.ffn_{x}", f"{_LAYER}.feed_forward.{x}_proj", bias=True) for x in ("gate", "up", "down")),
    ),
    plan=_plan,
)
