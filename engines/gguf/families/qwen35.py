"""qwen35, qwen35moe and qwen3next: Qwen 3.5, 3.6 and Qwen3-Next: most layers are gated delta nets, every fourth has attention whose
output is gated.

All three run on mlx-lm's class of Qwen 3.5, whose projections are split as the files' are. The converter of Qwen 3.5 lays out
value heads in turns; that of Qwen3-Next leaves them together, and b and a of a key head after one another (early files q, k, v
and z too): those rows are taken apart again. Norms are stored with the one that they are trained without. The sections of rotary
embeddings are alike for text.
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
    layer_kinds,
    state_slots,
    state_space,
    trunk,
    with_states,
)
from engines.gguf.families.shapes import Axes
from engines.gguf.names import EMBEDDING, HEAD, Slot, SlotKind, Transform
from engines.gguf.rope_scaling import stock_scaling

__all__ = ["QWEN3NEXT", "QWEN35", "QWEN35MOE"]

_LAYER: Final = "model.layers.{i}"
_ATTENTION: Final = f"{_LAYER}.self_attn"
_NET: Final = f"{_LAYER}.linear_attn"
_MLP: Final = f"{_LAYER}.mlp"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    config = trunk(checkpoint, "qwen3_5")
    kinds = layer_kinds(checkpoint)
    sizes = state_space(checkpoint)
    config |= attention_heads(checkpoint, kinds, config["hidden_size"]) | {
        "rms_norm_eps": parameters.number("attention.layer_norm_rms_epsilon"),
        "linear_num_value_heads": sizes.heads,
        "linear_num_key_heads": sizes.groups,
        "linear_key_head_dim": sizes.state,
        "linear_value_head_dim": sizes.head_width,
        "linear_conv_kernel_dim": sizes.kernel,
        "full_attention_interval": _interval(checkpoint, kinds.attention),
        "value_heads_in_turns": True,  # of the stand-in: no key of the stock class
    }
    config["rope_parameters"] = _rope(checkpoint, config["head_dim"])
    plan = with_states(
        checkpoint, config, kinds, 2 * config["num_key_value_heads"] * config["head_dim"], sizes.delta_chunk
    )
    return replace(plan, classes=("TextModel", "TextModelArgs"), stand_ins="delta_net")


def _dense(checkpoint: Checkpoint) -> Plan:
    plan = _plan(checkpoint)
    plan.config["intermediate_size"] = checkpoint.parameters.integer("feed_forward_length")
    return plan


def _mixture(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = _plan(checkpoint)
    width = parameters.integer("expert_feed_forward_length")
    experts = parameters.integer("expert_count")
    plan.config.update(
        {
            "intermediate_size": parameters.integer("feed_forward_length", width, least=0),  # of no layer
            "moe_intermediate_size": width,
            "shared_expert_intermediate_size": parameters.integer("expert_shared_feed_forward_length", width),
            "num_experts": experts,
            "num_experts_per_tok": parameters.integer("expert_used_count", most=experts),
            "norm_topk_prob": True,
        }
    )
    return plan


def _next(checkpoint: Checkpoint) -> Plan:
    plan = _mixture(checkpoint)
    plan.config["value_heads_in_turns"] = False
    early = not any(name.endswith((".attn_qkv.weight", ".attn_gate.weight")) for name in checkpoint.header.tensors)
    return replace(plan, slots=(*_NEXT, *(_EARLY_IN if early else _IN)))


def _interval(checkpoint: Checkpoint, attention: tuple[bool, ...]) -> int:
    """Every how many layers one has attention, which the stock class needs to be all that there is to say."""
    parameters, layers = checkpoint.parameters, len(attention)
    interval = parameters.integer("full_attention_interval", 4)
    told = parameters.integers("attention.recurrent_layers", layers)
    if told is not None:
        interval = attention.index(True) + 1 if True in attention else layers + 1
    if interval > layers or attention != tuple((layer + 1) % interval == 0 for layer in range(layers)):
        key = "full_attention_interval" if told is None else "attention.recurrent_layers"
        raise parameters.refusal(key, "attention in every n-th of all layers is supported here")
    return interval


def _rope(checkpoint: Checkpoint, head_dim: int) -> dict[str, Any]:
    parameters = checkpoint.parameters
    dims = parameters.integer("rope.dimension_count", head_dim, most=head_dim)
    if dims % 2:
        raise parameters.error("rope.dimension_count", f"is {dims}; features are rotated in pairs")
    parameters.integers("rope.dimension_sections", 3)
    scaling = stock_scaling(parameters, checkpoint.trained_context, ("linear", "yarn")) or {}
    return {
        "type": scaling.pop("rope_type", "default"),
        **scaling,
        "rope_theta": parameters.number("rope.freq_base", 10000.0),
        "partial_rotary_factor": dims / head_dim * (1 + 2**-40),  # a hair above: the stock class rounds down
    }


# --- rows of Qwen3-Next's projections, which lie by key heads --------------------------------------------------------


def _by_key_heads(config: Mapping[str, Any], *parts: str) -> tuple[list[int], int]:
    """Row numbers of these parts of q, k, v and z, in this order, and how many rows there are of all."""
    heads, width = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    sizes = {"q": width, "k": width, "v": values, "z": values}
    each = sum(sizes.values())
    starts = {"q": 0, "k": width, "v": 2 * width, "z": 2 * width + values}
    rows = [head * each + starts[part] + row for part in parts for head in range(heads) for row in range(sizes[part])]
    return rows, heads * each


def _taken(*parts: str) -> Transform:
    """These parts of a projection to q, k, v and z of one key head after the other."""

    def take(array: Any, config: Mapping[str, Any]) -> Any:
        rows, count = _by_key_heads(config, *parts)
        if array.shape[0] != count:
            raise ValueError(f"{array.shape[0]} rows, not {count}")
        return array[rows]

    return take


def _half(index: int) -> Transform:
    """The first or second half of each key head's rows."""

    def take(array: Any, config: Mapping[str, Any]) -> Any:
        halves = array.reshape(config["linear_num_key_heads"], 2, -1, *array.shape[1:])
        return halves[:, index].reshape(-1, *array.shape[1:])

    return take


def _one_row(array: Any, config: Mapping[str, Any]) -> Any:
    """A vector, or a matrix of one row, as the latter."""
    return array.reshape(1, -1)


def _widths(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    """Queries bring their gates; the delta net's keys are those of its key heads."""
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    queries = config["num_attention_heads"] * config["head_dim"]
    return {"queries_and_gates": 2 * queries, "net_values": values, "net_channels": 2 * keys + values}


_SHAPES: Final[Mapping[str, Axes]] = {
    "q_proj": ("queries_and_gates", "hidden"),
    "linear_attn.conv1d.weight": ("net_channels", "kernel", 1),
    "linear_attn.in_proj_qkv": ("net_channels", "hidden"),
    "linear_attn.in_proj_z": ("net_values", "hidden"),
    **dict.fromkeys(("in_proj_a", "in_proj_b"), ("linear_num_value_heads", "hidden")),
    **dict.fromkeys(("linear_attn.A_log", "linear_attn.dt_bias"), ("linear_num_value_heads",)),
    "linear_attn.norm": ("linear_value_head_dim",),
    "linear_attn.out_proj": ("hidden", "net_values"),
}
_TRUNK: Final = (
    Slot(EMBEDDING, "model.embed_tokens", SlotKind.EMBEDDING),
    Slot("output_norm", "model.norm", SlotKind.NORM),
    Slot(HEAD, "lm_head", optional=True),
    Slot("blk.{i}.attn_norm", f"{_LAYER}.input_layernorm", SlotKind.NORM),
    Slot("blk.{i}.post_attention_norm", f"{_LAYER}.post_attention_layernorm", SlotKind.NORM),
    *(Slot(f"blk.{{i}}.attn_{x}", f"{_ATTENTION}.{x}_proj", only=ATTENTION) for x in "qkv"),
    *(Slot(f"blk.{{i}}.attn_{x}_norm", f"{_ATTENTION}.{x}_norm", SlotKind.NORM, only=ATTENTION) for x in "qk"),
    Slot("blk.{i}.attn_output", f"{_ATTENTION}.o_proj", only=ATTENTION),
    Slot("blk.{i}.ssm_norm", f"{_NET}.norm", SlotKind.NORM, only=RECURRENT),
    *state_slots(_NET),
)
_IN: Final = (
    Slot("blk.{i}.attn_qkv", f"{_NET}.in_proj_qkv", only=RECURRENT),
    Slot("blk.{i}.attn_gate", f"{_NET}.in_proj_z", only=RECURRENT),
)
_EARLY_IN: Final = (
    Slot("blk.{i}.ssm_in", f"{_NET}.in_proj_qkv", only=RECURRENT, transform=_taken("q", "k", "v")),
    Slot("blk.{i}.ssm_in", f"{_NET}.in_proj_z", only=RECURRENT, transform=_taken("z")),
)
_B_AND_A: Final = (
    Slot("blk.{i}.ssm_beta", f"{_NET}.in_proj_b", only=RECURRENT),
    Slot("blk.{i}.ssm_alpha", f"{_NET}.in_proj_a", only=RECURRENT),
)
_BA: Final = (
    Slot("blk.{i}.ssm_ba", f"{_NET}.in_proj_b", only=RECURRENT, transform=_half(0)),
    Slot("blk.{i}.ssm_ba", f"{_NET}.in_proj_a", only=RECURRENT, transform=_half(1)),
)
_NAMES: Final = ("gate", "up", "down")
_EXPERTS: Final = (
    Slot("blk.{i}.ffn_gate_inp", f"{_MLP}.gate"),
    *(Slot(f"blk.{{i}}.ffn_{x}_exps", f"{_MLP}.switch_mlp.{x}_proj", SlotKind.EXPERTS) for x in _NAMES),
    *(Slot(f"blk.{{i}}.ffn_{x}_shexp", f"{_MLP}.shared_expert.{x}_proj") for x in _NAMES),
    Slot("blk.{i}.ffn_gate_inp_shexp", f"{_MLP}.shared_expert_gate", transform=_one_row),
)
_NEXT: Final = (*_TRUNK, *_BA, *_EXPERTS)

QWEN35 = Family(
    architecture="qwen35",
    model_type="qwen3_5",
    slots=(*_TRUNK, *_IN, *_B_AND_A, *(Slot(f"blk.{{i}}.ffn_{x}", f"{_MLP}.{x}_proj") for x in _NAMES)),
    plan=_dense,
    gate="silu",
    shapes=_SHAPES,
    widths=_widths,
)
QWEN35MOE = Family(
    architecture="qwen35moe",
    model_type="qwen3_5",
    slots=(*_TRUNK, *_IN, *_B_AND_A, *_EXPERTS),
    plan=_mixture,
    shapes=_SHAPES,
    widths=_widths,
)
QWEN3NEXT = Family(
    architecture="qwen3next",
    model_type="qwen3_5",
    slots=(*_NEXT, *_IN),
    plan=_next,
    shapes=_SHAPES,
    widths=_widths,
)
