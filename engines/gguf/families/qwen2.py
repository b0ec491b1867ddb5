"""qwen2: Qwen 2 and 2.5, with biases on Q, K and V. Finetunes without them exist."""

from __future__ import annotations

from engines.gguf.families.family import (
    DECODER,
    Checkpoint,
    Family,
    Plan,
    decoder_plan,
    own_head_width,
    whole_head_rope,
)
from engines.gguf.names import Slot, SlotKind

__all__ = ["QWEN2"]


def _plan(checkpoint: Checkpoint) -> Plan:
    plan = decoder_plan(checkpoint, QWEN2.model_type)
    own_head_width(checkpoint, plan)
    return whole_head_rope(checkpoint, plan, traditional=False)


QWEN2 = Family(
    architecture="qwen2",
    model_type="qwen2",
    slots=(
        *DECODER,
        Slot("blk.{i}.attn_q", "model.layers.{i}.self_attn.q_proj", bias=True),
        Slot("blk.{i}.attn_k", "model.layers.{i}.self_attn.k_proj", bias=True),
        Slot("blk.{i}.attn_v", "model.layers.{i}.self_attn.v_proj", bias=True),
        Slot("blk.{i}.ffn_norm", "model.layers.{i}.post_attention_layernorm", SlotKind.NORM),
        Slot("blk.{i}.ffn_gate", "model.layers.{i}.mlp.gate_proj"),
        Slot("blk.{i}.ffn_up", "model.layers.{i}.mlp.up_proj"),
    ),
    plan=_plan,
    gate="silu",
)
