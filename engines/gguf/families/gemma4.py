"""gemma4: the text part of Gemma 4, dense and with experts.

Windowed layers have heads of their own width and rotary base; full layers have wider heads, of which a part is rotated: the
file's factors of the others are so large that they stand still. Scores are not scaled. In the larger models values of full layers
are their keys before norm and rotation. In the small ones the last layers take keys and values of earlier ones, have a wider MLP
and, as all layers there, an embedding of the token of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from engines.errors import CheckpointError
from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.decoder_slots import GATE_UP, QK_NORMS, QKV, SANDWICH_NORMS
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, vocabulary_rows
from engines.gguf.names import HEAD, ROPE_FREQUENCIES, Slot, SlotKind
from engines.gguf.rope_scaling import RopeFactors, stock_scaling
from engines.gguf.transforms import expert_rows

__all__ = ["GEMMA4"]

_MOST_HEADS: Final = 4096
_MOST_HEAD_WIDTH: Final = 4096
_LAYER: Final = "model.layers.{i}"
_QUERY, _KEY, _VALUE = QKV
_QUERY_NORM, _KEY_NORM = QK_NORMS
_EXPERTS: Final = f"{_LAYER}.experts.switch_glu"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters, tensors = checkpoint.parameters, checkpoint.header.tensors
    layers = parameters.integer("block_count", most=len(tensors))
    slides = parameters.integers("attention.sliding_window_pattern", layers)
    if slides is None or len(set(slides)) != 2:
        raise parameters.error("attention.sliding_window_pattern", "must have layers with windows and layers without")
    full = [layer for layer in range(layers) if not slides[layer]]
    shared = parameters.integer("attention.shared_kv_layers", 0, least=0, most=layers - 2)
    own = range(layers - shared)
    if shared and len({slides[layer] for layer in own}) != 2:
        raise parameters.refusal("attention.shared_kv_layers", "there is nothing for the last layers to share")
    unkeyed = [layer for layer in own if f"blk.{layer}.attn_v.weight" not in tensors]
    if unkeyed and unkeyed != [layer for layer in full if layer in own]:
        raise CheckpointError(f"{checkpoint.header.path}: tensor 'blk.{unkeyed[0]}.attn_v.weight' is missing")
    config = _config(checkpoint, layers, slides, shared, keys_are_values=bool(unkeyed))
    if ROPE_FREQUENCIES not in tensors:
        raise CheckpointError(f"{checkpoint.header.path}: tensor '{ROPE_FREQUENCIES}' is missing")
    window, wide = config["sliding_window"], config["global_head_dim"]
    kv_heads, full_kv_heads = config["num_key_value_heads"], config["num_global_key_value_heads"]
    numbers = [2 * (kv_heads * config["head_dim"] if slide else full_kv_heads * wide) for slide in slides]
    factors = RopeFactors(ROPE_FREQUENCIES, wide, config["rope_theta"], traditional=False, only="full")
    return Plan(
        config,
        checkpoint.served_context,
        windows=tuple(window if slide else None for slide in slides),
        ropes=(factors,),
        tensors=(ROPE_FREQUENCIES, *_unused(layers - shared, layers)),
        slots=_slots(config),
        layers={"full": full, "keyed": own, "valued": [layer for layer in own if layer not in unkeyed]},
        kv_numbers=tuple(numbers[layer] if layer in own else 0 for layer in range(layers)),
    )


def _config(
    checkpoint: Checkpoint, layers: int, slides: list[int], shared: int, *, keys_are_values: bool
) -> dict[str, Any]:
    parameters = checkpoint.parameters
    stock_scaling(parameters, checkpoint.trained_context, ())  # there is none
    wide = parameters.integer("attention.key_length", most=_MOST_HEAD_WIDTH)
    narrow = parameters.integer("attention.key_length_swa", most=_MOST_HEAD_WIDTH)
    if wide % 2 or narrow % 2:
        raise parameters.error("attention.key_length", f"makes heads of {wide} and {narrow}, rotated in pairs")
    for key, width in (
        ("attention.value_length", wide),
        ("attention.value_length_swa", narrow),
        ("rope.dimension_count", wide),
        ("rope.dimension_count_swa", narrow),
        ("attention.scale", 1.0),
    ):
        parameters.expect(key, width)
    heads = parameters.integer("attention.head_count", most=_MOST_HEADS)
    kv_heads, full_kv_heads = _kv_heads(checkpoint, slides, heads, keys_are_values)
    inner, doubled = _inner(checkpoint, layers, shared)
    experts = parameters.integer("expert_count", 0, least=0)
    config: dict[str, Any] = {
        "model_type": "gemma4_text",
        "hidden_size": parameters.integer("embedding_length"),
        "num_hidden_layers": layers,
        "intermediate_size": inner,
        "use_double_wide_mlp": doubled,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_global_key_value_heads": full_kv_heads,
        "attention_k_eq_v": keys_are_values,
        "head_dim": narrow,
        "global_head_dim": wide,
        "num_kv_shared_layers": shared,
        "rms_norm_eps": parameters.number("attention.layer_norm_rms_epsilon"),
        "vocab_size": vocabulary_rows(checkpoint.header),
        "max_position_embeddings": checkpoint.trained_context,
        "rope_theta": parameters.number("rope.freq_base", 10000.0),
        "sliding_window": parameters.integer("attention.sliding_window", most=MAX_CONTEXT),
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
        "hidden_size_per_layer_input": parameters.integer("embedding_length_per_layer_input", 0, least=0),
        "vocab_size_per_layer_input": vocabulary_rows(checkpoint.header),
        "final_logit_softcapping": parameters.number("final_logit_softcapping", 30.0),
        "tie_word_embeddings": f"{HEAD}.weight" not in checkpoint.header.tensors,
        "enable_moe_block": experts > 0,
    }
    if experts:
        config |= {
            "num_experts": experts,
            "top_k_experts": parameters.integer("expert_used_count", most=experts),
            "moe_intermediate_size": parameters.integer("expert_feed_forward_length"),
        }
    windowed_base = parameters.number("rope.freq_base_swa", 10000.0)
    config["rope_parameters"] = {
        "full_attention": {"rope_theta": config["rope_theta"]},
        "sliding_attention": {"rope_theta": windowed_base},
    }
    return config


def _kv_heads(checkpoint: Checkpoint, slides: list[int], heads: int, keys_are_values: bool) -> tuple[int, int]:
    """KV heads of windowed and of full layers; the stock class has other ones in full layers only where these have no values."""
    parameters, key = checkpoint.parameters, "attention.head_count_kv"
    counts = parameters.per_layer(key, len(slides), heads, least=1, most=heads)
    windowed, full = counts[slides.index(1)], counts[slides.index(0)]
    if counts != [windowed if slide else full for slide in slides] or not (keys_are_values or windowed == full):
        raise parameters.refusal(key, "that differs between layers as no Gemma 4 does")
    if heads % windowed or heads % full:
        raise parameters.error(key, f"is {windowed} and {full}, which do not divide {heads} heads")
    return windowed, full


def _inner(checkpoint: Checkpoint, layers: int, shared: int) -> tuple[int, bool]:
    """The width of an MLP, and whether it is doubled in layers that share keys and values."""
    key = "feed_forward_length"
    widths = checkpoint.parameters.per_layer(key, layers, least=1)
    doubled = [widths[0]] * (layers - shared) + [2 * widths[0]] * shared
    if widths not in (doubled, [widths[0]] * layers):
        raise checkpoint.parameters.refusal(key, "that differs between layers as no Gemma 4 does")
    return widths[0], shared > 0 and widths == doubled


def _unused(start: int, stop: int) -> list[str]:
    """What converters leave in layers that take their keys from others."""
    names = ("attn_k", "attn_v", "attn_k_norm")
    return [f"blk.{layer}.{name}.weight" for layer in range(start, stop) for name in names]


def _slots(config: dict[str, Any]) -> tuple[Slot, ...]:
    slots = GEMMA4.slots
    if config["hidden_size_per_layer_input"]:
        slots += _PER_LAYER
    if config["enable_moe_block"]:
        slots += _MIXTURE
    return slots


def _widths(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    """Heads of full layers, and MLPs of those that share keys and values."""
    full = config["layer_types"][layer] == "full_attention"
    head = config["global_head_dim"] if full else config["head_dim"]
    shares = layer >= config["num_hidden_layers"] - config["num_kv_shared_layers"]
    return {
        "key": head,
        "value": head,
        "kv_heads": config["num_global_key_value_heads" if full else "num_key_value_heads"],
        "inner": config["intermediate_size"] * (2 if shares and config["use_double_wide_mlp"] else 1),
    }


def _gate_and_up(config: Mapping[str, Any]) -> int:
    """Rows of both projections of an expert."""
    return 2 * int(config["moe_intermediate_size"])


_PER_LAYER: Final = (
    Slot("per_layer_token_embd", "model.embed_tokens_per_layer", SlotKind.EMBEDDING),
    Slot("per_layer_model_proj", "model.per_layer_model_projection"),
    Slot("per_layer_proj_norm", "model.per_layer_projection_norm", SlotKind.NORM),
    Slot("blk.{i}.inp_gate", f"{_LAYER}.per_layer_input_gate"),
    Slot("blk.{i}.proj", f"{_LAYER}.per_layer_projection"),
    Slot("blk.{i}.post_norm", f"{_LAYER}.post_per_layer_input_norm", SlotKind.NORM),
)
_MIXTURE: Final = (
    Slot("blk.{i}.post_ffw_norm_1", f"{_LAYER}.post_feedforward_layernorm_1", SlotKind.NORM),
    Slot("blk.{i}.post_ffw_norm_2", f"{_LAYER}.post_feedforward_layernorm_2", SlotKind.NORM),
    Slot("blk.{i}.pre_ffw_norm_2", f"{_LAYER}.pre_feedforward_layernorm_2", SlotKind.NORM),
    Slot("blk.{i}.ffn_gate_inp", f"{_LAYER}.router.proj"),
    Slot("blk.{i}.ffn_gate_inp.scale", f"{_LAYER}.router.scale", SlotKind.PARAMETER),
    Slot("blk.{i}.ffn_down_exps.scale", f"{_LAYER}.router.per_expert_scale", SlotKind.PARAMETER),
    Slot("blk.{i}.ffn_down_exps", f"{_EXPERTS}.down_proj", SlotKind.EXPERTS),
    Slot(
        "blk.{i}.ffn_gate_up_exps",
        f"{_EXPERTS}.gate_proj",
        SlotKind.EXPERTS,
        transform=expert_rows(lambda c: 0, lambda c: c["moe_intermediate_size"], _gate_and_up),
    ),
    Slot(
        "blk.{i}.ffn_gate_up_exps",
        f"{_EXPERTS}.up_proj",
        SlotKind.EXPERTS,
        transform=expert_rows(lambda c: c["moe_intermediate_size"], _gate_and_up, _gate_and_up),
    ),
)

GEMMA4 = Family(
    architecture="gemma4",
    model_type="gemma4_text",
    slots=(
        *DECODER,
        _QUERY,
        replace(_KEY, only="keyed"),
        replace(_VALUE, only="valued"),
        _QUERY_NORM,
        replace(_KEY_NORM, only="keyed"),
        *SANDWICH_NORMS,
        *GATE_UP,
        Slot("blk.{i}.layer_output_scale.weight", f"{_LAYER}.layer_scalar", SlotKind.PARAMETER),
    ),
    plan=_plan,
    gate="gelu_tanh",
    shapes={"layer_scalar": (1,), "router.scale": ("hidden",), "per_expert_scale": ("experts",)},
    widths=_widths,
)
