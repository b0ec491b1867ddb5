"""stablelm: StableLM 3B, StableLM 2 and Zephyr: layer norms, a part of each head rotated.

Without a norm before the MLP, that takes what attention takes and both are added at once. The 12B model normalises Q and K,
each head with weights of its own, which the stock class keeps in a module a head.
"""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.families.decoder_slots import (
    GATE_UP,
    QKV,
    in_any_block,
    rotated_dims,
    rotated_part,
    scaled,
    with_biases,
)
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan, own_head_width
from engines.gguf.names import Slot, SlotKind
from engines.gguf.transforms import item

__all__ = ["STABLELM"]

_FFN_NORM = Slot("blk.{i}.ffn_norm", "model.layers.{i}.post_attention_layernorm", SlotKind.NORM, bias=True)


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, "stablelm", epsilon="attention.layer_norm_epsilon")
    own_head_width(checkpoint, plan)
    config = plan.config
    parallel = not in_any_block(checkpoint, "ffn_norm")
    normed = in_any_block(checkpoint, "attn_q_norm")
    parameters.flag("use_parallel_residual", parallel)  # the tensors say it, and files of the 12B model say it wrongly
    dims = rotated_dims(checkpoint, plan)
    config |= {
        "layer_norm_eps": config["rms_norm_eps"],
        "partial_rotary_factor": rotated_part(dims, config["head_dim"]),
        "use_parallel_residual": parallel,
        "use_qkv_bias": False,
        "qk_layernorm": normed,
    }
    slots = STABLELM.slots if parallel else (*STABLELM.slots, _FFN_NORM)
    if normed:
        slots += _norms_by_head("q", config["num_attention_heads"]) + _norms_by_head("k", config["num_key_value_heads"])
    return scaled(replace(plan, slots=slots), dims)


def _norms_by_head(name: str, heads: int) -> tuple[Slot, ...]:
    module = f"model.layers.{{i}}.self_attn.{name}_layernorm.norms"
    return tuple(
        Slot(
            f"blk.{{i}}.attn_{name}_norm.weight",
            f"{module}.{head}.weight",
            SlotKind.PARAMETER,
            transform=item(head, heads),
        )
        for head in range(heads)
    )


STABLELM = Family(
    architecture="stablelm",
    model_type="stablelm",
    slots=(*with_biases(DECODER), *QKV, *GATE_UP),
    plan=_plan,
    gate="silu",
    shapes={"norms.*.weight": ("key",)},
)
