"""chatglm: ChatGLM 2 and 3 and GLM-4-9B-Chat: projections fused as Phi 3's, half of a head rotated, neighbours together.

mlx-lm's phi3 computes that once its rotary embeddings are told so; its ``glm`` rotates whole heads, which these models do not.
"""

from __future__ import annotations

from engines.gguf.families.decoder_slots import FFN_NORM, neighbours_rotate, rotated_dims, rotated_part, scaled
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan, own_head_width
from engines.gguf.names import Slot

__all__ = ["CHATGLM"]


def _plan(checkpoint: Checkpoint) -> Plan:
    plan = decoder_plan(checkpoint, "phi3")
    own_head_width(checkpoint, plan)
    dims = rotated_dims(checkpoint, plan)
    plan.config["partial_rotary_factor"] = rotated_part(dims, plan.config["head_dim"])
    return neighbours_rotate(scaled(plan, dims, traditional=True))


CHATGLM = Family(
    architecture="chatglm",
    model_type="phi3",
    slots=(
        *DECODER,
        Slot("blk.{i}.attn_qkv", "model.layers.{i}.self_attn.qkv_proj", bias=True),
        FFN_NORM,
        Slot("blk.{i}.ffn_up", "model.layers.{i}.mlp.gate_up_proj"),
    ),
    plan=_plan,
)
