"""mamba2: Mamba 2 and Codestral Mamba: state-space layers, no attention, no MLPs.

The gated norm is taken over each group of heads, as the file's shape of it says; mlx-lm's class takes it over all.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from engines.gguf.families.family import Checkpoint, Family, Plan
from engines.gguf.families.recurrent import (
    gated_norm_slot,
    has_in_states,
    layer_kinds,
    state_space,
    state_space_slots,
    trunk,
    with_states,
)
from engines.gguf.names import EMBEDDING, HEAD, Slot, SlotKind

__all__ = ["MAMBA2"]

_LAYER: Final = "backbone.layers.{i}"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    config = trunk(checkpoint, MAMBA2.model_type)
    kinds = layer_kinds(checkpoint)
    sizes = state_space(checkpoint)
    parameters.expect("attention.head_count", 0)
    parameters.expect("feed_forward_length", 0)
    eps = parameters.number("attention.layer_norm_rms_epsilon")
    config |= {
        "num_heads": sizes.heads,
        "head_dim": sizes.head_width,
        "intermediate_size": sizes.inner,
        "state_size": sizes.state,
        "layer_norm_epsilon": eps,
        "gated_norm_eps": eps,
        "conv_kernel": sizes.kernel,
        "n_groups": sizes.groups,
        "use_bias": False,  # the leaf's own
        "use_conv_bias": has_in_states(checkpoint, kinds, "ssm_conv1d.bias"),
        "time_step_limit": (0.0, math.inf),
        "time_step_rank": "auto",
    }
    told = {f"{_LAYER.format(i=i)}.norm.eps": eps for i in range(len(kinds.recurrent))}
    return replace(with_states(checkpoint, config, kinds, 0, sizes.scan_chunk), attributes=told, stand_ins="mamba2")


MAMBA2 = Family(
    architecture="mamba2",
    model_type="mamba2",
    slots=(
        Slot(EMBEDDING, "backbone.embeddings", SlotKind.EMBEDDING),
        Slot("output_norm", "backbone.norm_f", SlotKind.NORM),
        Slot(HEAD, "lm_head", optional=True),
        Slot("blk.{i}.attn_norm", f"{_LAYER}.norm", SlotKind.NORM),
        *state_space_slots(f"{_LAYER}.mixer"),
        gated_norm_slot(f"{_LAYER}.mixer"),
    ),
    plan=_plan,
)
