"""mamba and jamba: the first Mamba and Falcon Mamba, and AI21's Jamba, which has layers with attention and experts among Mamba's.

In Jamba a layer without KV heads is a Mamba layer, nothing is rotated, and experts are where the file has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from engines.errors import CheckpointError
from engines.gguf.families.family import Checkpoint, Family, Plan
from engines.gguf.families.recurrent import (
    RECURRENT,
    attention_heads,
    attention_slots,
    both_kinds,
    indices,
    layer_kinds,
    trunk,
    with_states,
)
from engines.gguf.families.recurrent_layers import RecurrentLayers
from engines.gguf.families.shapes import Axes
from engines.gguf.names import EMBEDDING, HEAD, Slot, SlotKind
from engines.gguf.transforms import log_negative, unsqueezed_last

__all__ = ["JAMBA", "MAMBA"]

_BACKBONE: Final = "backbone.layers.{i}"
_LAYER: Final = "model.layers.{i}"
_DENSE: Final = "dense"  # layers without experts
_MIXTURE: Final = "mixture"
_PART: Final = 32  # tokens that are scanned at once


def _mamba(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    config = trunk(checkpoint, MAMBA.model_type)
    kinds = layer_kinds(checkpoint)
    parameters.expect("attention.head_count", 0)
    parameters.expect("feed_forward_length", 0)
    eps = parameters.number("attention.layer_norm_rms_epsilon")
    config |= {
        "intermediate_size": parameters.integer("ssm.inner_size"),
        "state_size": parameters.integer("ssm.state_size"),
        "conv_kernel": parameters.integer("ssm.conv_kernel", least=2),
        "time_step_rank": parameters.integer("ssm.time_step_rank"),
        "use_bias": False,  # a leaf's own
        "use_conv_bias": True,
        "scan_norm_eps": eps if parameters.flag("ssm.dt_b_c_rms", False) else None,
    }
    _has_steps(checkpoint, kinds)
    told = {f"{_BACKBONE.format(i=i)}.norm.eps": eps for i in range(len(kinds.recurrent))}
    return replace(_scanned(checkpoint, config, kinds, 0), attributes={**told, "backbone.norm_f.eps": eps})


def _jamba(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    config = trunk(checkpoint, JAMBA.model_type)
    kinds = layer_kinds(checkpoint)
    both_kinds(checkpoint, kinds)
    heads = attention_heads(checkpoint, kinds, config["hidden_size"])
    inner = parameters.integer("ssm.inner_size")
    if heads["head_dim"] * heads["num_attention_heads"] != config["hidden_size"]:
        raise parameters.refusal("attention.key_length", "heads that share the hidden width are supported here")
    if inner % config["hidden_size"]:
        raise parameters.error("ssm.inner_size", f"is {inner}, no multiple of a width of {config['hidden_size']}")
    config |= heads | {
        "intermediate_size": parameters.integer("feed_forward_length"),
        "rms_norm_eps": parameters.number("attention.layer_norm_rms_epsilon"),
        "layers_block_type": ["attention" if has else "mamba" for has in kinds.attention],
        "attn_layer_offset": 0,  # the list says it
        "attn_layer_period": 1,
        "mamba_d_conv": parameters.integer("ssm.conv_kernel", least=2),
        "mamba_d_state": parameters.integer("ssm.state_size"),
        "mamba_expand": inner // config["hidden_size"],
        "mamba_dt_rank": parameters.integer("ssm.time_step_rank"),
        "scan_norm_eps": None,
    }
    _has_steps(checkpoint, kinds)
    mixtures = _experts(checkpoint, config)
    plan = _scanned(checkpoint, config, kinds, 2 * config["num_key_value_heads"] * config["head_dim"])
    parts = {_MIXTURE: mixtures, _DENSE: [i for i in range(len(kinds.attention)) if i not in mixtures]}
    return replace(plan, layers={**plan.layers, **parts})


def _scanned(checkpoint: Checkpoint, config: dict[str, Any], kinds: RecurrentLayers, numbers: int) -> Plan:
    return replace(with_states(checkpoint, config, kinds, numbers, 3 * _PART * kinds.state), stand_ins="selective_scan")


def _has_steps(checkpoint: Checkpoint, kinds: RecurrentLayers) -> None:
    for layer in indices(kinds.recurrent):
        name = f"blk.{layer}.ssm_dt.bias"
        if name not in checkpoint.header.tensors:
            raise CheckpointError(f"{checkpoint.header.path}: tensor '{name}' is missing")


def _experts(checkpoint: Checkpoint, config: dict[str, Any]) -> list[int]:
    """The layers with experts, which the stock class needs to be every n-th."""
    parameters, layers = checkpoint.parameters, config["num_hidden_layers"]
    experts = parameters.integer("expert_count", 0, least=0)
    used = parameters.integer("expert_used_count", 0, least=0, most=max(experts, 1))
    tensors = checkpoint.header.tensors
    routed = [i for i in range(layers) if any(f"blk.{i}.ffn_{x}.weight" in tensors for x in ("gate_inp", "gate_exps"))]
    period = routed[1] - routed[0] if len(routed) > 1 else layers
    if routed and (experts < 2 or routed != list(range(routed[0], layers, period))):
        raise parameters.refusal("expert_count", "experts in every n-th layer are supported here")
    config |= {
        "num_experts": experts if routed else 1,
        "num_experts_per_tok": used,
        "expert_layer_period": period,
        "expert_layer_offset": -routed[0] % period if routed else 0,  # which the stock class adds
    }
    return routed


def _mixer(path: str) -> tuple[Slot, ...]:
    return (
        Slot("blk.{i}.ssm_in", f"{path}.in_proj", bias=True, only=RECURRENT),
        Slot(
            "blk.{i}.ssm_conv1d.weight",
            f"{path}.conv1d.weight",
            SlotKind.PARAMETER,
            only=RECURRENT,
            transform=unsqueezed_last,
        ),
        Slot("blk.{i}.ssm_conv1d.bias", f"{path}.conv1d.bias", SlotKind.PARAMETER, only=RECURRENT),
        Slot("blk.{i}.ssm_x", f"{path}.x_proj", only=RECURRENT),
        Slot("blk.{i}.ssm_dt", f"{path}.dt_proj", bias=True, only=RECURRENT),
        Slot("blk.{i}.ssm_a", f"{path}.A_log", SlotKind.PARAMETER, only=RECURRENT, transform=log_negative),
        Slot("blk.{i}.ssm_d", f"{path}.D", SlotKind.PARAMETER, only=RECURRENT),
        Slot("blk.{i}.ssm_out", f"{path}.out_proj", bias=True, only=RECURRENT),
    )


def _widths(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    """Jamba's inner width is a multiple of the model's."""
    expanded = config.get("mamba_expand")
    inner = config["intermediate_size"] if expanded is None else expanded * config["hidden_size"]
    rank = config["time_step_rank"] if expanded is None else config["mamba_dt_rank"]
    state = config["state_size"] if expanded is None else config["mamba_d_state"]
    return {"scanned": inner, "scanned_and_gates": 2 * inner, "rank": rank, "steps_and_keys": rank + 2 * state}


_SHAPES: Final[Mapping[str, Axes]] = {
    "in_proj": ("scanned_and_gates", "hidden"),
    "conv1d.weight": ("scanned", "kernel", 1),
    "conv1d.bias": ("scanned",),
    "x_proj": ("steps_and_keys", "scanned"),
    "dt_proj": ("scanned", "rank"),
    "A_log": ("scanned", "state"),
    "D": ("scanned",),
    "out_proj": ("hidden", "scanned"),
    "dt_layernorm": ("rank",),
    "b_layernorm": ("state",),
    "c_layernorm": ("state",),
}
_NAMES: Final = ("gate", "up", "down")

MAMBA = Family(
    architecture="mamba",
    model_type="mamba",
    slots=(
        Slot(EMBEDDING, "backbone.embeddings", SlotKind.EMBEDDING),
        Slot("output_norm", "backbone.norm_f", SlotKind.NORM),
        Slot(HEAD, "lm_head", optional=True),
        Slot("blk.{i}.attn_norm", f"{_BACKBONE}.norm", SlotKind.NORM),
        *_mixer(f"{_BACKBONE}.mixer"),
    ),
    plan=_mamba,
    shapes=_SHAPES,
    widths=_widths,
)
JAMBA = Family(
    architecture="jamba",
    model_type="jamba",
    slots=(
        Slot(EMBEDDING, "model.embed_tokens", SlotKind.EMBEDDING),
        Slot("output_norm", "model.final_layernorm", SlotKind.NORM),
        Slot(HEAD, "lm_head", optional=True),
        Slot("blk.{i}.attn_norm", f"{_LAYER}.input_layernorm", SlotKind.NORM),
        Slot("blk.{i}.ffn_norm", f"{_LAYER}.pre_ff_layernorm", SlotKind.NORM),
        *attention_slots(f"{_LAYER}.self_attn"),
        *_mixer(f"{_LAYER}.mamba"),
        *(
            Slot(f"blk.{{i}}.ssm_{x}_norm", f"{_LAYER}.mamba.{x}_layernorm", SlotKind.NORM, only=RECURRENT)
            for x in ("dt", "b", "c")
        ),
        *(Slot(f"blk.{{i}}.ffn_{x}", f"{_LAYER}.feed_forward.{x}_proj", only=_DENSE) for x in _NAMES),
        Slot("blk.{i}.ffn_gate_inp", f"{_LAYER}.feed_forward.router", only=_MIXTURE),
        *(
            Slot(
                f"blk.{{i}}.ffn_{x}_exps", f"{_LAYER}.feed_forward.switch_mlp.{x}_proj", SlotKind.EXPERTS, only=_MIXTURE
            )
            for x in _NAMES
        ),
    ),
    plan=_jamba,
    shapes=_SHAPES,
    widths=_widths,
)
