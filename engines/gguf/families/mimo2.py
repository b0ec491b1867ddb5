"""mimo2: Xiaomi's MiMo V2 Flash and V2.5: windows in most layers, with other KV heads, another rotary base and sinks; values are
narrower than keys; DeepSeek's form of routed blocks, without shared experts.

Q, K and V are apart in some files and one matrix in others. Blocks that predict further tokens are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.family import Checkpoint, Family, Plan, vocabulary_rows
from engines.gguf.families.moe import NORMS, ROUTED, SIGMOID, WHOLE, expect_gating, experts_of, gated_slots, groups_of
from engines.gguf.names import HEAD, Slot, SlotKind
from engines.gguf.rope_scaling import stock_scaling

__all__ = ["MIMO2"]

_MOST = 4096  # heads, and features of one
_ATTENTION = "model.layers.{i}.self_attn"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters, tensors = checkpoint.parameters, checkpoint.header.tensors
    blocks = parameters.integer("block_count", most=len(tensors))
    further = parameters.integer("nextn_predict_layers", 0, least=0, most=blocks - 1)
    layers = blocks - further
    heads = parameters.integer("attention.head_count", most=_MOST)
    kv_heads = parameters.per_layer("attention.head_count_kv", layers, least=1, most=heads)
    key = parameters.integer("attention.key_length", most=_MOST)
    value = parameters.integer("attention.value_length", key, most=_MOST)
    rotated = parameters.integer("rope.dimension_count", key, most=key)
    if rotated % 2:
        raise parameters.error("rope.dimension_count", f"is {rotated}; features are rotated in pairs")
    parameters.expect("rope.dimension_count_swa", rotated)
    stock_scaling(parameters, checkpoint.trained_context, ())
    slides = parameters.integers("attention.sliding_window_pattern", layers)
    if slides is None or set(slides) != {0, 1}:
        raise parameters.error("attention.sliding_window_pattern", "is not an array of windowed and other layers")
    window = parameters.integer("attention.sliding_window", most=MAX_CONTEXT)
    by_kind = [{kv for kv, slide in zip(kv_heads, slides, strict=True) if slide == kind} for kind in (0, 1)]
    if any(len(counts) > 1 for counts in by_kind):
        raise parameters.refusal(
            "attention.head_count_kv", "values that differ between layers of a kind are not supported"
        )
    (full_heads,), (windowed_heads,) = by_kind
    base = parameters.number("rope.freq_base", 10000.0)
    experts = experts_of(checkpoint)
    expect_gating(parameters, SIGMOID)
    if not parameters.flag("expert_weights_norm", True):
        raise parameters.refusal("expert_weights_norm", "only weights that are normalised are supported here")
    routed = [layer for layer in range(layers) if f"blk.{layer}.ffn_gate_inp.weight" in tensors]
    # The stock class has them in all layers of a kind or in none.
    kinds_sunk = {slides[layer] for layer in range(layers) if f"blk.{layer}.attn_sinks.weight" in tensors}
    sunk = [layer for layer in range(layers) if slides[layer] in kinds_sunk]
    config: dict[str, Any] = {
        "model_type": MIMO2.model_type,
        "hidden_size": parameters.integer("embedding_length"),
        "num_hidden_layers": layers,
        "vocab_size": vocabulary_rows(checkpoint.header),
        "intermediate_size": parameters.integer("feed_forward_length"),
        "layernorm_epsilon": parameters.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": checkpoint.trained_context,
        "num_attention_heads": heads,
        "num_key_value_heads": full_heads,
        "swa_num_attention_heads": heads,
        "swa_num_key_value_heads": windowed_heads,
        "head_dim": key,
        "swa_head_dim": key,
        "v_head_dim": value,
        "swa_v_head_dim": value,
        "partial_rotary_factor": rotated / key * (1 + 2**-40),  # the stock class multiplies it back, and rounds down
        "rope_theta": base,
        "swa_rope_theta": parameters.number("rope.freq_base_swa", base),
        "sliding_window_size": window,
        "hybrid_layer_pattern": slides,
        "add_swa_attention_sink_bias": 1 in kinds_sunk,
        "add_full_attention_sink_bias": 0 in kinds_sunk,
        "attention_value_scale": parameters.any_number("attention.value_scale", 0.0) or None,
        "moe_layer_freq": [int(layer in set(routed)) for layer in range(layers)],
        "moe_intermediate_size": experts.width,
        "n_routed_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "n_shared_experts": None,
        "routed_scaling_factor": parameters.number("expert_weights_scale", 1.0),
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "tie_word_embeddings": f"{HEAD}.weight" not in tensors,
        **groups_of(parameters, experts),
    }
    return Plan(
        config,
        checkpoint.served_context,
        tuple(window if slide else None for slide in slides),
        slots=(*_SLOTS, *(_JOINED if "blk.0.attn_qkv.weight" in tensors else _APART)),
        layers={
            "dense": [layer for layer in range(layers) if layer not in set(routed)],
            "routed": routed,
            "sunk": sunk,
        },
        spare_blocks=further,
        kv_numbers=tuple(count * (key + value) for count in kv_heads),
        stock_values=("e_score_correction_bias",),
    )


def _queries(array: Any, config: Mapping[str, Any]) -> Any:
    return array[: config["num_attention_heads"] * config["head_dim"]]


def _keys(array: Any, config: Mapping[str, Any]) -> Any:
    start = config["num_attention_heads"] * config["head_dim"]
    rows = (array.shape[0] - start) * config["head_dim"] // (config["head_dim"] + config["v_head_dim"])
    return array[start : start + rows]


def _values(array: Any, config: Mapping[str, Any]) -> Any:
    before = _queries(array, config).shape[0] + _keys(array, config).shape[0]
    return array[before:]


def _widths(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    windowed = config["hybrid_layer_pattern"][layer]
    return {"kv_heads": config["swa_num_key_value_heads" if windowed else "num_key_value_heads"]}


_APART = tuple(Slot(f"blk.{{i}}.attn_{part}", f"{_ATTENTION}.{part}_proj") for part in "qkv")
_JOINED = tuple(
    Slot("blk.{i}.attn_qkv", f"{_ATTENTION}.{part}_proj", transform=transform)
    for part, transform in (("q", _queries), ("k", _keys), ("v", _values))
)
_SLOTS = (
    *WHOLE,
    *NORMS,
    Slot("blk.{i}.attn_output", f"{_ATTENTION}.o_proj"),
    Slot("blk.{i}.attn_sinks.weight", f"{_ATTENTION}.attention_sink_bias", SlotKind.PARAMETER, only="sunk"),
    *gated_slots("model.layers.{i}.mlp", only="dense"),
    *ROUTED,
)

MIMO2 = Family(architecture="mimo2", model_type="mimo_v2_flash", slots=_SLOTS, plan=_plan, gate="silu", widths=_widths)
