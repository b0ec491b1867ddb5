"""Nemotron-H, dense and with experts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.errors import UnsupportedModel
from engines.gguf.model import build_model
from engines.header import read_header
from tests.engines.gguf.families.helpers_family import VOCABULARY, Array, Case, checks, floats_of, write_case
from tests.engines.gguf.families.helpers_mamba2 import KEPT_FLOATS, MAMBA2_NAMES, mamba2_converted, mamba2_initial
from tests.engines.gguf.families.helpers_names import renamed

HEADS, WIDTH, STATE, GROUPS = 4, 32, 16, 2
CONFIG: dict[str, Any] = {
    "model_type": "nemotron_h",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "attention_bias": False,
    "mamba_num_heads": HEADS,
    "mamba_head_dim": WIDTH,
    "mamba_proj_bias": False,
    "ssm_state_size": STATE,
    "conv_kernel": 4,
    "n_groups": GROUPS,
    "mlp_bias": False,
    "layer_norm_epsilon": 1e-5,
    "use_bias": False,
    "use_conv_bias": True,
    "hybrid_override_pattern": list("M-*M-"),
}
MIXTURE: dict[str, Any] = CONFIG | {
    "hybrid_override_pattern": list("ME*E"),
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 64,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
METADATA: dict[str, Any] = {
    "context_length": 256,
    "embedding_length": 64,
    "block_count": 5,
    "feed_forward_length": [0, 96, 0, 0, 96],
    "vocab_size": VOCABULARY,
    "attention.head_count": 4,
    "attention.head_count_kv": [0, 0, 2, 0, 0],
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.layer_norm_epsilon": 1e-5,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.scaling.finetuned": False,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": HEADS * WIDTH,
    "ssm.state_size": STATE,
    "ssm.time_step_rank": HEADS,
    "ssm.group_count": GROUPS,
}
MIXTURE_METADATA = METADATA | {
    "block_count": 4,
    "feed_forward_length": [0, 32, 0, 32],
    "attention.head_count_kv": [0, 0, 2, 0],
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 64,
    "expert_shared_count": 1,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
    "expert_group_count": 1,
}
NAMES = {
    "backbone.embeddings.weight": "token_embd.weight",
    "backbone.norm_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "norm.weight": "attn_norm.weight",
    "mixer.q_proj.weight": "attn_q.weight",
    "mixer.k_proj.weight": "attn_k.weight",
    "mixer.v_proj.weight": "attn_v.weight",
    "mixer.o_proj.weight": "attn_output.weight",
    "mixer.up_proj.weight": "ffn_up.weight",
    "mixer.down_proj.weight": "ffn_down.weight",
    "mixer.gate.weight": "ffn_gate_inp.weight",
    "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mixer.switch_mlp.fc1.weight": "ffn_up_exps.weight",
    "mixer.switch_mlp.fc2.weight": "ffn_down_exps.weight",
    "mixer.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mixer.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    "mixer.fc1_latent_proj.weight": "ffn_latent_down.weight",
    "mixer.fc2_latent_proj.weight": "ffn_latent_up.weight",
    **{f"mixer.{name}": ours for name, ours in MAMBA2_NAMES.items()},
}


def converted(weights: dict[str, Array], config: dict[str, Any]) -> dict[str, Array]:
    return {
        name: mamba2_converted(own.removeprefix("mixer."), value, GROUPS) if "mixer." in own else value
        for name, own, value in renamed(weights, NAMES)
    }


DENSE = Case(
    "nemotron_h",
    "nemotron_h",
    CONFIG,
    METADATA,
    converted,
    floats=KEPT_FLOATS,
    initial=mamba2_initial,
    optional=("ssm_conv1d.bias",),
)
EXPERTS = replace(DENSE, id="nemotron_h_moe", architecture="nemotron_h_moe", config=MIXTURE, metadata=MIXTURE_METADATA)
CASES = [
    DENSE,
    EXPERTS,
    replace(
        EXPERTS,
        id="nemotron_h_moe-latent",
        light=True,
        config=MIXTURE | {"moe_latent_size": 32, "norm_topk_prob": False},
        metadata=MIXTURE_METADATA | {"moe_latent_size": 32, "expert_weights_norm": False},
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)


def test_blocks_that_predict_further_tokens_are_left_alone(tmp_path: Path) -> None:
    _, tensors = floats_of(EXPERTS)
    told: dict[str, Any] = {
        "block_count": 5,
        "nextn_predict_layers": 1,
        "feed_forward_length": [0, 32, 0, 32, 32],
        "attention.head_count_kv": [0, 0, 2, 0, 2],
    }
    more = {"blk.4.attn_norm.weight": ("F32", np.ones(64, np.float32))}
    built = build_model(read_header(write_case(tmp_path / "mtp.gguf", EXPERTS, tensors | more, told)))
    assert built.config["hybrid_override_pattern"] == list("ME*E")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_group_count", 2),
        ("expert_feed_forward_length", [0, 32, 0, 64]),
        ("expert_gating_func", 1),
        ("feed_forward_length", [0, 32, 32, 32]),
    ],
)
def test_what_the_stock_class_cannot_compute_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    path = write_case(tmp_path / "odd.gguf", EXPERTS, floats_of(EXPERTS)[1], {key: value})
    with pytest.raises(UnsupportedModel, match=key):
        build_model(read_header(path))
