"""ernie4_5-moe: Baidu's ERNIE 4.5 with experts: neighbouring features are rotated, a few dense blocks first, shared experts.

Experts are chosen by biased scores, which the stock class does not know: the routed block is our own (``stand_ins/routed.py``).
"""

from __future__ import annotations

from dataclasses import replace

from engines.gguf.families.decoder_slots import scaled
from engines.gguf.families.family import Checkpoint, Family, Plan, decoder_plan
from engines.gguf.families.moe import (
    ATTENTION,
    NORMS,
    SOFTMAX,
    WHOLE,
    correction_bias,
    expect_gating,
    expert_slots,
    experts_of,
    gated_slots,
)

__all__ = ["ERNIE4_5_MOE"]

_MLP = "model.layers.{i}.mlp"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = scaled(decoder_plan(checkpoint, ERNIE4_5_MOE.model_type), traditional=True)
    parameters.expect("rope.dimension_count", plan.config["head_dim"])
    layers = plan.config["num_hidden_layers"]
    experts = experts_of(checkpoint)
    expect_gating(parameters, SOFTMAX)
    parameters.expect("expert_weights_scale", 1.0)
    first = parameters.integer("leading_dense_block_count", 0, least=0)
    step = parameters.integer("interleave_moe_layer_step", 1)
    shared = parameters.integer("expert_shared_count", 0, least=0)
    parameters.expect("expert_shared_feed_forward_length", shared * experts.width)
    routed = [layer for layer in range(layers) if layer >= first and (layer + 1) % step == 0]
    config = plan.config | {
        "use_bias": False,  # where there are biases, the leaves have them
        "moe_num_experts": experts.count,
        "moe_k": experts.used,
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.width,
        "moe_num_shared_experts": shared,
        "moe_layer_start_index": first,
        "moe_layer_interval": step,
        "norm_topk_prob": parameters.flag("expert_weights_norm", True),
    }
    dense = [layer for layer in range(layers) if layer not in set(routed)]
    return replace(
        plan,
        config=config,
        layers={"dense": dense, "routed": routed},
        stand_ins="routed",
        stock_values=("e_score_correction_bias",),
    )


ERNIE4_5_MOE = Family(
    architecture="ernie4_5-moe",
    model_type="ernie4_5_moe",
    slots=(
        *WHOLE,
        *NORMS,
        *ATTENTION,
        *gated_slots(_MLP, only="dense"),
        *expert_slots(_MLP, only="routed"),
        correction_bias(f"{_MLP}.e_score_correction_bias", only="routed"),
        *gated_slots(f"{_MLP}.shared_experts", "_shexp", only="routed", optional=True),
    ),
    plan=_plan,
    gate="silu",
)
