"""deepseek: DeepSeek's first models with experts: a few dense blocks first, shared experts, weights of the chosen ones as they are.

The converter interleaves rows of Q and K.
"""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.families.decoder_slots import neighbours_rotate
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan, own_head_width
from engines.gguf.families.moe import (
    ATTENTION,
    NORMS,
    SOFTMAX,
    WHOLE,
    dense_and_routed,
    expect_gating,
    expert_slots,
    experts_of,
    gated_slots,
)
from engines.gguf.names import Slot, SlotKind

__all__ = ["DEEPSEEK"]

_MLP = "model.layers.{i}.mlp"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, DEEPSEEK.model_type, scalings=())
    own_head_width(checkpoint, plan)
    parameters.expect("rope.dimension_count", plan.config["head_dim"])
    experts = experts_of(checkpoint)
    expect_gating(parameters, SOFTMAX)
    parameters.expect("expert_weights_scale", 1.0)
    if parameters.flag("expert_weights_norm", False):
        raise parameters.refusal("expert_weights_norm", "weights that are normalised are not supported here")
    dense = parameters.integer("leading_dense_block_count", 0, least=0)
    config = plan.config | {
        "n_routed_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.width,
        "n_shared_experts": parameters.integer("expert_shared_count", 0, least=0) or None,
        "first_k_dense_replace": dense,
    }
    sets = dense_and_routed(config["num_hidden_layers"], dense)
    return neighbours_rotate(replace(plan, config=config, layers=sets))


DEEPSEEK = Family(
    architecture="deepseek",
    model_type="deepseek",
    slots=(
        *WHOLE,
        *NORMS,
        *ATTENTION,
        *gated_slots(_MLP, only="dense"),
        Slot("blk.{i}.ffn_gate_inp.weight", f"{_MLP}.gate.weight", SlotKind.PARAMETER, only="routed"),
        *expert_slots(_MLP, only="routed")[1:],
        *gated_slots(f"{_MLP}.shared_experts", "_shexp", only="routed", optional=True),
    ),
    plan=_plan,
    gate="silu",
)
