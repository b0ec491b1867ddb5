"""hunyuan-dense: Hunyuan 0.5B to 7B: norms on Q and K after they were rotated.

Its scaling of the rotary base by a power of ``alpha`` has been done by the converter: the file has the scaled base.
"""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.families.decoder_slots import FFN_NORM, GATE_UP, QKV, in_any_block, scaled, without
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan
from engines.gguf.names import Slot, SlotKind
from engines.gguf.rope_scaling import ScaledRope

__all__ = ["HUNYUAN_DENSE"]

_NORMS = (
    Slot("blk.{i}.attn_q_norm", "model.layers.{i}.self_attn.query_layernorm", SlotKind.NORM),
    Slot("blk.{i}.attn_k_norm", "model.layers.{i}.self_attn.key_layernorm", SlotKind.NORM),
)


def _plan(checkpoint: Checkpoint) -> Plan:
    plan = decoder_plan(checkpoint, "hunyuan_v1_dense")
    checkpoint.parameters.expect("rope.dimension_count", plan.config["head_dim"])
    normed = in_any_block(checkpoint, "attn_q_norm")
    plan.config.update({"attention_bias": False, "use_qk_norm": normed})
    slots = HUNYUAN_DENSE.slots if normed else without(HUNYUAN_DENSE.slots, *_NORMS)
    plan = scaled(replace(plan, slots=slots))
    if plan.ropes:
        return plan
    # The stock embedding has wavelengths of its own making, which no compiled kernel stands in for.
    plain = ScaledRope({"rope_type": "default"}, plan.config["head_dim"], plan.config["rope_theta"], traditional=False)
    return replace(plan, ropes=(plain,))


HUNYUAN_DENSE = Family(
    architecture="hunyuan-dense",
    model_type="hunyuan_v1_dense",
    slots=(*DECODER, *QKV, *GATE_UP, FFN_NORM, *_NORMS),
    plan=_plan,
    gate="silu",
)
