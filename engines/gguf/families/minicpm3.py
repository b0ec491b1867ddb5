"""minicpm3: MiniCPM 3: keys and values come out of a latent, and embeddings, residuals and logits are scaled.

The scales are constants of the one model there is: no key says them, and llama.cpp's runtime has them too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engines.gguf.families.decoder_slots import FFN_NORM, GATE_UP
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan
from engines.gguf.families.phi3 import long_rope
from engines.gguf.names import Slot, SlotKind

__all__ = ["MINICPM3"]

_SCALES: Final = {"scale_emb": 12.0, "dim_model_base": 256, "scale_depth": 1.4}


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, "minicpm3", scalings=("longrope",))
    config = plan.config
    width, heads = config["head_dim"], config["num_attention_heads"]
    parameters.expect("attention.head_count_kv", heads)
    rotated = parameters.integer("rope.dimension_count", most=width - 1)
    if rotated % 2:
        raise parameters.error("rope.dimension_count", f"is {rotated}; features are rotated in pairs")
    context = checkpoint.trained_context
    config |= _SCALES | {
        "q_lora_rank": parameters.integer("attention.q_lora_rank"),
        "kv_lora_rank": parameters.integer("attention.kv_lora_rank"),
        "qk_nope_head_dim": width - rotated,
        "qk_rope_head_dim": rotated,
        "v_head_dim": config["hidden_size"] // heads,
        # Without factors nothing is scaled; with them the whole embedding is replaced.
        "rope_scaling": {"original_max_position_embeddings": context},
        # The stock class scales logits only of a head of its own; a tied one is put in its place.
        "tie_word_embeddings": False,
    }
    plan = replace(plan, kv_numbers=(heads * (width + config["v_head_dim"]),) * len(plan.windows))
    return long_rope(checkpoint, plan, rotated)


MINICPM3 = Family(
    architecture="minicpm3",
    model_type="minicpm3",
    slots=(
        *DECODER,
        Slot("blk.{i}.attn_q_a", "model.layers.{i}.self_attn.q_a_proj", bias=True),
        Slot("blk.{i}.attn_q_a_norm", "model.layers.{i}.self_attn.q_a_layernorm", SlotKind.NORM),
        Slot("blk.{i}.attn_q_b", "model.layers.{i}.self_attn.q_b_proj"),
        Slot("blk.{i}.attn_kv_a_mqa", "model.layers.{i}.self_attn.kv_a_proj_with_mqa", bias=True),
        Slot("blk.{i}.attn_kv_a_norm", "model.layers.{i}.self_attn.kv_a_layernorm", SlotKind.NORM),
        Slot("blk.{i}.attn_kv_b", "model.layers.{i}.self_attn.kv_b_proj"),
        *GATE_UP,
        FFN_NORM,
    ),
    plan=_plan,
    gate="silu",
)
