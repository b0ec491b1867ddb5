"""Qwen 3.5, its mixtures, and Qwen3-Next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engines.errors import UnsupportedModel
from engines.footprint import estimate
from engines.gguf.model import build_model
from engines.header import read_header
from tests.engines.gguf.families.helpers_family import (
    VOCABULARY,
    Array,
    Case,
    checks,
    floats_of,
    tokens,
    write_case,
)
from tests.engines.gguf.families.helpers_names import matrix_of_convolution, minus_exp, renamed

KEY_HEADS, VALUE_HEADS, WIDTH = 2, 6, 32
CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "linear_num_value_heads": VALUE_HEADS,
    "linear_num_key_heads": KEY_HEADS,
    "linear_key_head_dim": WIDTH,
    "linear_value_head_dim": WIDTH,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
    "tie_word_embeddings": False,
    "rope_parameters": {"type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.25},
}
MIXTURE: dict[str, Any] = CONFIG | {
    "num_hidden_layers": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 96,
    "moe_intermediate_size": 32,
}
METADATA: dict[str, Any] = {
    "context_length": 256,
    "embedding_length": 64,
    "block_count": 4,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 5000.0,
    "rope.dimension_count": 8,
    "ssm.conv_kernel": 4,
    "ssm.state_size": WIDTH,
    "ssm.group_count": KEY_HEADS,
    "ssm.time_step_rank": VALUE_HEADS,
    "ssm.inner_size": VALUE_HEADS * WIDTH,
    "full_attention_interval": 2,
}
DENSE_METADATA = METADATA | {"feed_forward_length": 96, "rope.dimension_sections": [2, 1, 1, 0]}
MIXTURE_METADATA = METADATA | {
    "rope.dimension_sections": [2, 1, 1, 0],
    "block_count": 2,
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 96,
}
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    **{f"mlp.switch_mlp.{x}_proj.weight": f"ffn_{x}_exps.weight" for x in ("gate", "up", "down")},
    **{f"mlp.shared_expert.{x}_proj.weight": f"ffn_{x}_shexp.weight" for x in ("gate", "up", "down")},
}


def in_turns(value: Array, width: int, axis: int = 0) -> Array:
    """Value heads from those of one key head together to one of each key head in turn."""
    shape = value.shape
    heads = value.reshape(*shape[:axis], KEY_HEADS, VALUE_HEADS // KEY_HEADS, width, *shape[axis + 1 :])
    return heads.swapaxes(axis, axis + 1).reshape(shape)


def converted(weights: dict[str, Array], config: dict[str, Any]) -> dict[str, Array]:
    keys = 2 * KEY_HEADS * WIDTH
    tensors: dict[str, Array] = {}
    for name, own, value in renamed(weights, NAMES):
        match own.removeprefix("linear_attn.").removesuffix(".weight"):
            case "in_proj_qkv":
                value = np.concatenate([value[:keys], in_turns(value[keys:], WIDTH)])
            case "in_proj_z":
                value = in_turns(value, WIDTH)
            case "in_proj_a" | "in_proj_b" | "dt_bias":
                value = in_turns(value, 1)
            case "A_log":
                value = minus_exp(in_turns(value, 1))
            case "conv1d":
                value = matrix_of_convolution(value)
                value = np.concatenate([value[:keys], in_turns(value[keys:], WIDTH)])
            case "out_proj":
                value = in_turns(value, WIDTH, axis=1)
            case "mlp.shared_expert_gate":
                value = value[0]
        tensors[name] = value
    return tensors


def next_converted(weights: dict[str, Array], config: dict[str, Any]) -> dict[str, Array]:
    """Qwen3-Next's: value heads stay together, b and a of a key head follow one another."""
    tensors: dict[str, Array] = {}
    for name, own, value in renamed(weights, NAMES):
        if own == "linear_attn.A_log":
            value = minus_exp(value)
        elif own == "linear_attn.conv1d.weight":
            value = matrix_of_convolution(value)
        tensors[name] = value
    for layer in range(0, config["num_hidden_layers"], 2):
        b, a = tensors.pop(f"blk.{layer}.ssm_beta.weight"), tensors.pop(f"blk.{layer}.ssm_alpha.weight")
        by_key_head = [each.reshape(KEY_HEADS, -1, config["hidden_size"]) for each in (b, a)]
        tensors[f"blk.{layer}.ssm_ba.weight"] = np.concatenate(by_key_head, axis=1).reshape(-1, config["hidden_size"])
    return tensors


def early_next_converted(weights: dict[str, Array], config: dict[str, Any]) -> dict[str, Array]:
    """That of its first files: q, k, v and z of a key head follow one another too."""
    tensors = next_converted(weights, config)
    for layer in range(0, config["num_hidden_layers"], 2):
        qkv, z = tensors.pop(f"blk.{layer}.attn_qkv.weight"), tensors.pop(f"blk.{layer}.attn_gate.weight")
        keys = KEY_HEADS * WIDTH
        parts = [qkv[:keys], qkv[keys : 2 * keys], qkv[2 * keys :], z]
        by_key_head = [part.reshape(KEY_HEADS, -1, config["hidden_size"]) for part in parts]
        tensors[f"blk.{layer}.ssm_in.weight"] = np.concatenate(by_key_head, axis=1).reshape(-1, config["hidden_size"])
    return tensors


def initial(name: str, random: Array) -> Array | None:
    """Convolutions that see more than their last input."""
    return 0.5 * random if name.endswith("conv1d.weight") else None


DENSE = Case(
    "qwen35",
    "qwen35",
    CONFIG,
    DENSE_METADATA,
    converted,
    classes=("TextModel", "TextModelArgs"),
    initial=initial,
    required=("block_count", "embedding_length", "attention.head_count", "ssm.inner_size", "ssm.time_step_rank"),
)
CASES = [
    DENSE,
    replace(
        DENSE,
        id="qwen35-tied-one-value-head-a-key-head",
        light=True,
        config=CONFIG | {"tie_word_embeddings": True, "linear_num_value_heads": KEY_HEADS, "num_hidden_layers": 2},
        metadata=DENSE_METADATA
        | {"ssm.time_step_rank": KEY_HEADS, "ssm.inner_size": KEY_HEADS * WIDTH, "block_count": 2},
        tensors=lambda weights, config: {
            name: minus_exp(value)
            if own.endswith("A_log")
            else matrix_of_convolution(value)
            if "conv1d" in own
            else value
            for name, own, value in renamed(weights, NAMES)
        },
    ),
    replace(DENSE, id="qwen35moe", architecture="qwen35moe", config=MIXTURE, metadata=MIXTURE_METADATA),
    replace(
        DENSE,
        id="qwen3next",
        architecture="qwen3next",
        config=MIXTURE,
        metadata=MIXTURE_METADATA | {"feed_forward_length": 96},
        tensors=next_converted,
    ),
    replace(
        DENSE,
        id="qwen3next-early",
        architecture="qwen3next",
        config=MIXTURE,
        metadata=MIXTURE_METADATA | {"feed_forward_length": 96},
        tensors=early_next_converted,
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)


def test_blocks_that_predict_further_tokens_are_left_alone(tmp_path: Path) -> None:
    stock, tensors = floats_of(DENSE)
    more = {
        "blk.4.attn_norm.weight": ("F32", np.ones(64, np.float32)),
        "blk.4.nextn.eh_proj.weight": tensors["output.weight"],
    }
    told: dict[str, Any] = {
        "block_count": 5,
        "nextn_predict_layers": 1,
        "attention.recurrent_layers": [True, False, True, False, False],
    }
    header = read_header(write_case(tmp_path / "mtp.gguf", DENSE, tensors | more, told))
    assert estimate(header) == estimate(read_header(write_case(tmp_path / "plain.gguf", DENSE, tensors)))
    built = build_model(header)
    assert mx.abs(stock(tokens(9)) - built.model(tokens(9))).max() < 1e-4


def test_attention_that_does_not_repeat_is_refused(tmp_path: Path) -> None:
    told = {"attention.recurrent_layers": [True, False, False, True]}
    path = write_case(tmp_path / "odd.gguf", DENSE, floats_of(DENSE)[1], told)
    with pytest.raises(UnsupportedModel, match="recurrent_layers"):
        build_model(read_header(path))
