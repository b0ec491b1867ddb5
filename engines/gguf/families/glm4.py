"""glm4: GLM-4-0414 and GLM-Z1, dense: half of a head is rotated, norms before and after attention and MLP, gate and up fused.

Files of its vision models have the rows of Q and K in halves, since llama.cpp's rotation by sections needs them so; for text all
sections of a position are alike, and it is the plain one.
"""

from __future__ import annotations

from engines.gguf.families.decoder_slots import FFN_NORM, QKV, rotated_dims, rotated_part, scaled
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan
from engines.gguf.names import Slot, SlotKind

__all__ = ["GLM4"]


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, "glm4")
    sections = parameters.integers("rope.dimension_sections", 2) or [0, 0]
    dims, traditional = rotated_dims(checkpoint, plan), not (sections[0] > 0 and sections[1] > 0)
    plan.config.update(
        {
            "attention_bias": False,
            "partial_rotary_factor": rotated_part(dims, plan.config["head_dim"]),
            "rope_traditional": traditional,
        }
    )
    return scaled(plan, dims, traditional=traditional)


GLM4 = Family(
    architecture="glm4",
    model_type="glm4",
    slots=(
        *DECODER,
        *QKV,
        FFN_NORM,
        Slot("blk.{i}.post_attention_norm", "model.layers.{i}.post_self_attn_layernorm", SlotKind.NORM),
        Slot("blk.{i}.post_ffw_norm", "model.layers.{i}.post_mlp_layernorm", SlotKind.NORM),
        Slot("blk.{i}.ffn_up", "model.layers.{i}.mlp.gate_up_proj"),
    ),
    plan=_plan,
)
