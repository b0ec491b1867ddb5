"""llama: Llama 1 to 3, Mistral, Mixtral (``mixtral.py``), SmolLM and SmolLM2, and all that was converted under this name.

The converter reorders the rows of Q and K, head by head, so that features which are rotated together are neighbours. The
stock class is told so (``rope_traditional``) instead of the rows being put back: attention sums over a head's features, so
their order does not matter as long as Q and K share it. The blocks stay as they lie in the file, and biases, reordered alike,
need nothing either.
"""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.families.family import (
    DECODER,
    Checkpoint,
    Family,
    Plan,
    decoder_plan,
    whole_head_rope,
    window_everywhere,
)
from engines.gguf.families.mixtral import mixtral_plan
from engines.gguf.names import Slot, SlotKind

__all__ = ["LLAMA"]


def _plan(checkpoint: Checkpoint) -> Plan:
    if checkpoint.parameters.integer("expert_count", 0, least=0):
        return mixtral_plan(checkpoint)
    plan = decoder_plan(checkpoint, LLAMA.model_type)
    plan = replace(plan, config=plan.config | {"rope_traditional": True})
    return window_everywhere(checkpoint, whole_head_rope(checkpoint, plan, traditional=True))


LLAMA = Family(
    architecture="llama",
    model_type="llama",
    slots=(
        *DECODER,
        Slot("blk.{i}.attn_q", "model.layers.{i}.self_attn.q_proj", bias=True),
        Slot("blk.{i}.attn_k", "model.layers.{i}.self_attn.k_proj", bias=True),
        Slot("blk.{i}.attn_v", "model.layers.{i}.self_attn.v_proj", bias=True),
        Slot("blk.{i}.ffn_norm", "model.layers.{i}.post_attention_layernorm", SlotKind.NORM),
        Slot("blk.{i}.ffn_gate", "model.layers.{i}.mlp.gate_proj", bias=True),
        Slot("blk.{i}.ffn_up", "model.layers.{i}.mlp.up_proj", bias=True),
    ),
    plan=_plan,
    gate="silu",
)
