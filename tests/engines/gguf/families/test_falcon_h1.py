"""Falcon-H1, with the multipliers that the converter puts into its weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engines.gguf.stand_ins.mamba2 import GroupedGatedNorm
from tests.engines.gguf.families.helpers_family import VOCABULARY, Array, Case, checks
from tests.engines.gguf.families.helpers_mamba2 import KEPT_FLOATS, MAMBA2_NAMES, mamba2_converted, mamba2_initial
from tests.engines.gguf.families.helpers_names import renamed

HEADS, WIDTH, STATE = 4, 32, 16
CONFIG: dict[str, Any] = {
    "model_type": "falcon_h1",
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": WIDTH,
    "mamba_d_ssm": HEADS * WIDTH,
    "mamba_d_state": STATE,
    "mamba_n_groups": 1,
    "mamba_n_heads": HEADS,
    "mamba_rms_norm": False,
    "tie_word_embeddings": False,
}
METADATA: dict[str, Any] = {
    "context_length": 256,
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 96,
    "vocab_size": VOCABULARY,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 1e6,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": HEADS * WIDTH,
    "ssm.state_size": STATE,
    "ssm.time_step_rank": HEADS,
    "ssm.group_count": 1,
}
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.final_layernorm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "pre_ff_layernorm.weight": "ffn_norm",  # without a suffix
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    **{f"feed_forward.{x}_proj.weight": f"ffn_{x}.weight" for x in ("gate", "up", "down")},
    **{f"mamba.{name}": ours for name, ours in MAMBA2_NAMES.items()},
}


def converted(weights: dict[str, Array], config: dict[str, Any]) -> dict[str, Array]:
    """The stock class expects multipliers in its weights, as the file has them."""
    return {
        name: mamba2_converted(own.removeprefix("mamba."), value, config["mamba_n_groups"])
        if own.startswith("mamba.")
        else value
        for name, own, value in renamed(weights, NAMES)
    }


def group_norms(model: Any) -> None:
    """The stock class takes the gated norm over all groups, which is not what Falcon-H1 was trained with."""
    for layer in model.layers:
        layer.mamba.norm = GroupedGatedNorm(layer.mamba.norm, 2, 1e-5)


CASE = Case(
    "falcon-h1",
    "falcon-h1",
    CONFIG,
    METADATA,
    converted,
    floats=KEPT_FLOATS,
    initial=mamba2_initial,
    optional=("ssm_conv1d.bias", "ssm_norm.weight"),
)
CASES = [
    CASE,
    replace(
        CASE,
        id="falcon-h1-gated-norm",
        light=True,
        config=CONFIG | {"mamba_rms_norm": True},
    ),
    replace(
        CASE,
        id="falcon-h1-groups",
        proof="as the others, with the stock gated norm taken a group at a time",
        config=CONFIG | {"mamba_rms_norm": True, "mamba_n_groups": 2},
        metadata=METADATA | {"ssm.group_count": 2},
        prepare=group_norms,
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
