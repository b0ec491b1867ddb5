"""chatglm: ChatGLM 2 and 3 and GLM-4-9B-Chat: projections fused as Phi 3's, half of a head rotated, neighbours together.

mlx-lm's phi3 computes that once its rotary embeddings are told so; its ``glm`` rotates whole heads, which these models do not.
Conversions of GLM-4-9B-Chat in Hugging Face's own form have Q, K and V apart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engines.gguf.families.decoder_slots import (
    FFN_NORM,
    in_any_block,
    neighbours_rotate,
    rotated_dims,
    rotated_part,
    scaled,
    without,
)
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan, own_head_width
from engines.gguf.names import Slot

__all__ = ["CHATGLM"]


def _plan(checkpoint: Checkpoint) -> Plan:
    plan = decoder_plan(checkpoint, "phi3")
    own_head_width(checkpoint, plan)
    dims = rotated_dims(checkpoint, plan)
    plan.config["partial_rotary_factor"] = rotated_part(dims, plan.config["head_dim"])
    if in_any_block(checkpoint, "attn_qkv"):
        plan = replace(plan, slots=(*without(CHATGLM.slots, _APART), _FUSED))
    return neighbours_rotate(scaled(plan, dims, traditional=True))


_QKV: Final = "model.layers.{i}.self_attn.qkv_proj"
_FUSED: Final = Slot("blk.{i}.attn_qkv", _QKV, bias=True)
_APART: Final = Slot(("blk.{i}.attn_q", "blk.{i}.attn_k", "blk.{i}.attn_v"), _QKV, bias=True)


CHATGLM = Family(
    architecture="chatglm",
    model_type="phi3",
    slots=(
        *DECODER,
        _APART,
        FFN_NORM,
        Slot("blk.{i}.ffn_up", "model.layers.{i}.mlp.gate_up_proj"),
    ),
    plan=_plan,
)
