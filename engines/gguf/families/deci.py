"""deci: DeciLM 7B and NVIDIA's Llama-Nemotron 49B, 51B and 253B: Llama with blocks that a search has made unlike each other.

A block may have other numbers of KV heads and another inner width than the next, a single matrix in the place of attention, or
neither attention nor MLP. Metadata says it by layer: no KV heads but heads is the single matrix, no heads no attention. The
converter interleaves rows of Q and K as for Llama.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from engines.gguf.families.decoder_slots import FFN_NORM, GATE_UP, QKV, without
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, vocabulary_rows, whole_head_rope
from engines.gguf.names import HEAD, Slot
from engines.gguf.rope_scaling import stock_scaling

__all__ = ["DECI"]

_MOST_HEADS: Final = 4096
_ROUNDING: Final = 256  # of the stock class's inner widths


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    layers = parameters.integer("block_count", most=len(checkpoint.header.tensors))
    hidden = parameters.integer("embedding_length")
    by_layer = parameters.per_layer("attention.head_count", layers, most=_MOST_HEADS)
    heads = max(by_layer)
    if not heads or hidden % heads or any(count not in (0, heads) for count in by_layer):
        raise parameters.error("attention.head_count", f"is {heads} at most, for a width of {hidden}")
    kv_heads = parameters.per_layer("attention.head_count_kv", layers, heads, most=heads)
    inner = parameters.per_layer("feed_forward_length", layers)
    head_dim = hidden // heads
    if head_dim % 2:
        raise parameters.error("attention.head_count", f"makes heads of {head_dim}, which cannot be rotated in pairs")
    parameters.expect("attention.key_length", head_dim)
    parameters.expect("attention.value_length", head_dim)
    attending = [i for i in range(layers) if by_layer[i] and kv_heads[i]]
    normed = [i for i in range(layers) if by_layer[i]]
    fed = [i for i in range(layers) if inner[i]]
    if not attending or normed[0] != attending[0] or any(heads % kv_heads[i] for i in attending):
        raise parameters.error("attention.head_count_kv", "must begin with attention, by numbers that divide its heads")
    if set(normed) - set(fed):
        raise parameters.refusal("feed_forward_length", "a block of attention without an MLP is not supported here")
    config: dict[str, Any] = {
        "model_type": "nemotron-nas",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(kv_heads),
        "head_dim": head_dim,
        "rms_norm_eps": parameters.number("attention.layer_norm_rms_epsilon"),
        "vocab_size": vocabulary_rows(checkpoint.header),
        "max_position_embeddings": checkpoint.trained_context,
        "rope_theta": parameters.number("rope.freq_base", 10000.0),
        "rope_scaling": stock_scaling(parameters, checkpoint.trained_context, ("linear", "yarn")),
        "tie_word_embeddings": f"{HEAD}.weight" not in checkpoint.header.tensors,
        "block_configs": [
            {"attention": _attention(heads, by_layer[i], kv_heads[i]), "ffn": _mlp(checkpoint, hidden, inner[i])}
            for i in range(layers)
        ],
        # For the shapes of a layer; no keys of the stock class.
        "kv_heads_by_layer": kv_heads,
        "inner_by_layer": inner,
    }
    plan = Plan(
        config,
        checkpoint.served_context,
        windows=(None,) * layers,
        layers={"attending": attending, "linear": sorted(set(normed) - set(attending)), "normed": normed, "fed": fed},
        kv_numbers=tuple(2 * kv_heads[i] * head_dim if i in attending else 0 for i in range(layers)),
        # Caches that nothing is put into cannot be joined.
        most_rows=None if normed == attending else 1,
    )
    plan = whole_head_rope(checkpoint, plan, traditional=True)
    if plan.ropes:
        return replace(plan, ropes=tuple(replace(rope, only="attending") for rope in plan.ropes))
    return replace(plan, attributes={f"model.layers.{i}.self_attn.rope.traditional": True for i in attending})


def _attention(heads: int, own: int, kv_heads: int) -> dict[str, Any]:
    if not own:
        return {"no_op": True}
    return {"n_heads_in_group": heads // kv_heads} if kv_heads else {"replace_with_linear": True}


def _mlp(checkpoint: Checkpoint, hidden: int, inner: int) -> dict[str, Any]:
    """The stock class makes its inner width of a multiplier: two thirds of it times the width, rounded up."""
    if inner % _ROUNDING:
        raise checkpoint.parameters.refusal("feed_forward_length", f"multiples of {_ROUNDING} are supported here")
    return {"ffn_mult": 1.5 * inner / hidden} if inner else {"no_op": True}


def _widths(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    return {"kv_heads": config["kv_heads_by_layer"][layer], "inner": config["inner_by_layer"][layer]}


_OUTPUT: Final = "blk.{i}.attn_output"

DECI = Family(
    architecture="deci",
    model_type="nemotron-nas",
    slots=(
        *(
            replace(slot, only="normed" if slot.stem == "blk.{i}.attn_norm" else "fed")
            if isinstance(slot.stem, str) and slot.stem.startswith("blk.")
            else slot
            for slot in without(DECODER, _OUTPUT)
        ),
        Slot(_OUTPUT, "model.layers.{i}.self_attn.o_proj", bias=True, only="attending"),
        Slot(_OUTPUT, "model.layers.{i}.self_attn.linear", only="linear"),
        *(replace(slot, only="attending") for slot in QKV),
        *(replace(slot, only="fed") for slot in (*GATE_UP, FFN_NORM)),
    ),
    plan=_plan,
    gate="silu",
    shapes={"self_attn.linear": ("hidden", "hidden")},
    widths=_widths,
)
