"""qwen3: Qwen 3, dense: norms on Q and K, heads of their own width, no biases."""

from __future__ import annotations

from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan, whole_head_rope
from engines.gguf.names import Slot, SlotKind

__all__ = ["QWEN3"]


def _plan(checkpoint: Checkpoint) -> Plan:
    return whole_head_rope(checkpoint, decoder_plan(checkpoint, QWEN3.model_type), traditional=False)


QWEN3 = Family(
    architecture="qwen3",
    model_type="qwen3",
    slots=(
        *DECODER,
        Slot("blk.{i}.attn_q", "model.layers.{i}.self_attn.q_proj"),
        Slot("blk.{i}.attn_k", "model.layers.{i}.self_attn.k_proj"),
        Slot("blk.{i}.attn_v", "model.layers.{i}.self_attn.v_proj"),
        Slot("blk.{i}.attn_q_norm", "model.layers.{i}.self_attn.q_norm", SlotKind.NORM),
        Slot("blk.{i}.attn_k_norm", "model.layers.{i}.self_attn.k_norm", SlotKind.NORM),
        Slot("blk.{i}.ffn_norm", "model.layers.{i}.post_attention_layernorm", SlotKind.NORM),
        Slot("blk.{i}.ffn_gate", "model.layers.{i}.mlp.gate_proj"),
        Slot("blk.{i}.ffn_up", "model.layers.{i}.mlp.up_proj"),
    ),
    plan=_plan,
    gate="silu",
)
