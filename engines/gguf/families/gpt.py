"""gpt2, gptneox and starcoder: what came before Llama: layer norms and biases everywhere, Q, K and V in one matrix, no gate.

    gpt2        GPT-2: learned positions
    gptneox     GPT-NeoX, Pythia, Dolly: a part of a head rotated; the stock class has Q, K and V together by head
    starcoder   StarCoder 1: learned positions, one KV head; the stock class computes positions of one row only

Learned positions end with the context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engines.gguf.families.decoder_slots import rotated_dims, rotated_part, scaled
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan, own_head_width
from engines.gguf.names import EMBEDDING, HEAD, Slot, SlotKind

__all__ = ["GPT2", "GPTNEOX", "STARCODER"]


def _slots(
    trunk: str, embedding: str, final: str, norms: tuple[str, str], rest: tuple[str, str, str]
) -> tuple[Slot, ...]:
    """Slots of one of these classes, which name the same modules differently; blocks are ``h`` in all. ``rest`` are attention's
    output projection and the MLP's two."""
    block = f"{trunk}.h.{{i}}"
    return (
        Slot(EMBEDDING, f"{trunk}.{embedding}", SlotKind.EMBEDDING),
        Slot("output_norm", f"{trunk}.{final}", SlotKind.NORM, bias=True),
        Slot("blk.{i}.attn_norm", f"{block}.{norms[0]}", SlotKind.NORM, bias=True),
        Slot("blk.{i}.ffn_norm", f"{block}.{norms[1]}", SlotKind.NORM, bias=True),
        Slot("blk.{i}.attn_output", f"{block}.{rest[0]}", bias=True),
        Slot("blk.{i}.ffn_up", f"{block}.{rest[1]}", bias=True),
        Slot("blk.{i}.ffn_down", f"{block}.{rest[2]}", bias=True),
    )


_GPT = (("ln_1", "ln_2"), ("attn.c_proj", "mlp.c_fc", "mlp.c_proj"))
_POSITIONS = "position_embd"


def _learned(checkpoint: Checkpoint, model_type: str) -> Plan:
    plan = decoder_plan(checkpoint, model_type, scalings=(), epsilon="attention.layer_norm_epsilon")
    own_head_width(checkpoint, plan)
    config = plan.config
    config |= {
        "n_embd": config["hidden_size"],
        "n_layer": config["num_hidden_layers"],
        "n_head": config["num_attention_heads"],
        "n_inner": config["intermediate_size"],
        "n_ctx": config["max_position_embeddings"],
        "n_positions": config["max_position_embeddings"],
        "layer_norm_epsilon": config["rms_norm_eps"],
    }
    return plan


def _expect_own_width(checkpoint: Checkpoint, plan: Plan) -> None:
    """Refuses MLPs that are not as wide as the stock class makes them."""
    checkpoint.parameters.expect("feed_forward_length", 4 * plan.config["hidden_size"])


def _gpt2(checkpoint: Checkpoint) -> Plan:
    plan = _learned(checkpoint, "gpt2")
    checkpoint.parameters.expect("attention.head_count_kv", plan.config["num_attention_heads"])
    _expect_own_width(checkpoint, plan)
    return plan


def _starcoder(checkpoint: Checkpoint) -> Plan:
    plan = _learned(checkpoint, "gpt_bigcode")
    checkpoint.parameters.expect("attention.head_count_kv", 1)
    plan.config.update({"multi_query": True, "num_key_value_heads": 1})
    return replace(plan, most_rows=1)


def _gptneox(checkpoint: Checkpoint) -> Plan:
    plan = decoder_plan(checkpoint, "gpt_neox", epsilon="attention.layer_norm_epsilon")
    own_head_width(checkpoint, plan)
    config = plan.config
    checkpoint.parameters.expect("attention.head_count_kv", config["num_attention_heads"])
    _expect_own_width(checkpoint, plan)
    dims = rotated_dims(checkpoint, plan)
    config |= {
        "layer_norm_eps": config["rms_norm_eps"],
        "rotary_emb_base": config["rope_theta"],
        "rotary_pct": rotated_part(dims, config["head_dim"]),
        "use_parallel_residual": checkpoint.parameters.flag("use_parallel_residual", True),
    }
    return scaled(plan, dims, module="model.h.{i}.attention.rope")


def _by_head(array: Any, config: Mapping[str, Any]) -> Any:
    """Rows of all queries, all keys, all values to those of each head's query, key and value."""
    parts = array.reshape(3, config["num_attention_heads"], -1, *array.shape[1:])
    return parts.swapaxes(0, 1).reshape(array.shape)


GPT2 = Family(
    architecture="gpt2",
    model_type="gpt2",
    slots=(
        *_slots("model", "wte", "ln_f", *_GPT),
        Slot(_POSITIONS, "model.wpe", SlotKind.EMBEDDING),
        Slot("blk.{i}.attn_qkv", "model.h.{i}.attn.c_attn", bias=True),
    ),
    plan=_gpt2,
)

GPTNEOX = Family(
    architecture="gptneox",
    model_type="gpt_neox",
    slots=(
        *_slots(
            "model",
            "embed_in",
            "final_layer_norm",
            ("input_layernorm", "post_attention_layernorm"),
            ("attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        ),
        Slot(HEAD, "model.embed_out"),
        Slot("blk.{i}.attn_qkv", "model.h.{i}.attention.query_key_value", bias=True, transform=_by_head),
    ),
    plan=_gptneox,
)

STARCODER = Family(
    architecture="starcoder",
    model_type="gpt_bigcode",
    slots=(
        *_slots("transformer", "wte", "ln_f", *_GPT),
        Slot(HEAD, "lm_head", optional=True),
        Slot(_POSITIONS, "transformer.wpe", SlotKind.EMBEDDING),
        Slot("blk.{i}.attn_qkv", "transformer.h.{i}.attn.c_attn", bias=True),
    ),
    plan=_starcoder,
)
