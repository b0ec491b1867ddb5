"""step35: Step 3.5 Flash: windows in most layers, which have other heads, another rotary base and twice the rotated features.

Attention is gated by head, and activations are clamped in some layers. The converter adds the one to norms that the stock class
expects added, and pads the rotary factors of full layers to the length of windowed ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.family import Checkpoint, Family, Plan, vocabulary_rows
from engines.gguf.families.moe import (
    ATTENTION,
    NORMS,
    QK_NORMS,
    SIGMOID,
    WHOLE,
    correction_bias,
    dense_and_routed,
    expect_gating,
    expert_slots,
    experts_of,
    gated_slots,
)
from engines.gguf.names import HEAD, ROPE_FREQUENCIES, Slot
from engines.gguf.rope_scaling import RopeFactors, stock_scaling

__all__ = ["STEP35"]

_MLP = "model.layers.{i}.mlp"
_MOST = 4096  # heads, and features of one


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters, header = checkpoint.parameters, checkpoint.header
    blocks = parameters.integer("block_count")
    further = parameters.integer("nextn_predict_layers", 0, least=0, most=blocks - 1)
    layers = blocks - further
    head_dim = parameters.integer("attention.key_length", most=_MOST)
    parameters.expect("attention.value_length", head_dim)
    rotated = parameters.integer("rope.dimension_count", head_dim, most=head_dim)
    if rotated % 4:
        raise parameters.error(
            "rope.dimension_count", f"is {rotated}; half of them are rotated in pairs in some layers"
        )
    parameters.expect("rope.dimension_count_swa", rotated)
    window = parameters.integer("attention.sliding_window", most=MAX_CONTEXT)
    slides = parameters.integers("attention.sliding_window_pattern", layers)
    if slides is None:
        raise parameters.error("attention.sliding_window_pattern", "is missing, or no array")
    base = parameters.number("rope.freq_base", 10000.0)
    windowed_base = parameters.number("rope.freq_base_swa", base)
    stock_scaling(parameters, checkpoint.trained_context, ())
    kv_heads = parameters.per_layer("attention.head_count_kv", layers, least=1, most=_MOST)
    experts = experts_of(checkpoint)
    expect_gating(parameters, SIGMOID)
    parameters.expect("moe_every_n_layers", 1)
    dense = parameters.integer("leading_dense_block_count", 0, least=0)
    heads = _heads(checkpoint, "attention.head_count", slides)
    groups = _heads(checkpoint, "attention.head_count_kv", slides)
    config: dict[str, Any] = {
        "model_type": STEP35.model_type,
        "hidden_size": parameters.integer("embedding_length"),
        "num_hidden_layers": layers,
        "vocab_size": vocabulary_rows(header),
        "num_attention_heads": heads[0],
        "num_attention_groups": groups[0],
        "attention_other_setting": {"num_attention_heads": heads[1], "num_attention_groups": groups[1]},
        "head_dim": head_dim,
        "intermediate_size": parameters.integer("feed_forward_length"),
        "rms_norm_eps": parameters.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": [windowed_base if slide else base for slide in slides],
        "max_position_embeddings": checkpoint.trained_context,
        "sliding_window": window,
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
        "partial_rotary_factors": [rotated / (1 if slide else 2) / head_dim * (1 + 2**-40) for slide in slides],
        "use_head_wise_attn_gate": "blk.0.attn_gate.weight" in header.tensors,
        "moe_num_experts": experts.count,
        "moe_top_k": experts.used,
        "moe_intermediate_size": experts.width,
        "share_expert_dim": parameters.integer("expert_shared_feed_forward_length"),
        "moe_layers_enum": ",".join(str(layer) for layer in range(dense, layers)),
        "moe_router_scaling_factor": parameters.number("expert_weights_scale", 1.0),
        "norm_expert_weight": parameters.flag("expert_weights_norm", False),
        "swiglu_limits": parameters.numbers("swiglu_clamp_exp", layers),
        "swiglu_limits_shared": parameters.numbers("swiglu_clamp_shexp", layers),
        "tie_word_embeddings": f"{HEAD}.weight" not in header.tensors,
    }
    factors = RopeFactors(ROPE_FREQUENCIES, rotated // 2, base, traditional=False, only="full", stored=rotated // 2)
    has_factors = ROPE_FREQUENCIES in header.tensors
    full = [layer for layer in range(layers) if not slides[layer]]
    return Plan(
        config,
        checkpoint.served_context,
        tuple(window if slide else None for slide in slides),
        ropes=(factors,) if has_factors else (),
        tensors=(ROPE_FREQUENCIES,) if has_factors else (),
        layers={**dense_and_routed(layers, dense), "full": full},
        spare_blocks=further,
        kv_numbers=tuple(2 * count * head_dim for count in kv_heads),
        stock_values=("router_bias",),
    )


def _heads(checkpoint: Checkpoint, key: str, slides: list[int]) -> tuple[int, int]:
    """The heads of full layers and of windowed ones. UnsupportedModel where layers of a kind differ."""
    parameters = checkpoint.parameters
    counts = parameters.per_layer(key, len(slides), least=1, most=_MOST)
    layers = list(zip(counts, slides, strict=True))
    kinds = [{count for count, slide in layers if not slide}, {count for count, slide in layers if slide}]
    if any(len(kind) > 1 for kind in kinds):
        raise parameters.refusal(key, "values that differ between layers of a kind are not supported")
    full, windowed = (next(iter(kind), counts[0]) for kind in kinds)
    return full, windowed


def _widths(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    windowed = config["layer_types"][layer] == "sliding_attention"
    heads = config["attention_other_setting"] if windowed else config
    return {"heads": heads["num_attention_heads"], "kv_heads": heads["num_attention_groups"]}


STEP35 = Family(
    architecture="step35",
    model_type="step3p5",
    slots=(
        *WHOLE,
        *NORMS,
        *ATTENTION,
        *QK_NORMS,
        Slot("blk.{i}.attn_gate", "model.layers.{i}.self_attn.g_proj", optional=True),
        *gated_slots(_MLP, only="dense"),
        *expert_slots(_MLP, router="gate.gate", only="routed"),
        correction_bias(f"{_MLP}.gate.router_bias", only="routed"),
        *gated_slots(f"{_MLP}.share_expert", "_shexp", only="routed"),
    ),
    plan=_plan,
    shapes={"g_proj": ("heads", "hidden")},
    widths=_widths,
)
