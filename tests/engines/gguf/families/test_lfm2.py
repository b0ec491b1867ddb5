"""LFM2 and its mixture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.errors import UnsupportedModel
from engines.gguf.model import build_model
from engines.header import read_header
from tests.engines.gguf.families.helpers_family import VOCABULARY, Array, Case, checks, floats_of, write_case
from tests.engines.gguf.families.helpers_names import matrix_of_convolution, renamed

CONFIG: dict[str, Any] = {
    "model_type": "lfm2",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_dim": 64,
    "block_multiple_of": 16,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
    "block_ff_dim": 144,  # adjusted to 96
    "full_attn_idxs": [1, 3],
}
MIXTURE: dict[str, Any] = {
    "model_type": "lfm2_moe",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "use_expert_bias": True,
    "num_dense_layers": 1,
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "rope_theta": 5000.0,
    "full_attn_idxs": [2],
}
METADATA: dict[str, Any] = {
    "context_length": 256,
    "embedding_length": 64,
    "block_count": 4,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": [0, 2, 0, 2],
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 5000.0,
    "vocab_size": VOCABULARY,
    "shortconv.l_cache": 3,
}
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.embedding_norm.weight": "token_embd_norm.weight",
    "operator_norm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.out_proj.weight": "attn_output.weight",
    "self_attn.q_layernorm.weight": "attn_q_norm.weight",
    "self_attn.k_layernorm.weight": "attn_k_norm.weight",
    "conv.in_proj.weight": "shortconv.in_proj.weight",
    "conv.out_proj.weight": "shortconv.out_proj.weight",
    "conv.conv.weight": "shortconv.conv.weight",
    "feed_forward.w1.weight": "ffn_gate.weight",
    "feed_forward.w2.weight": "ffn_down.weight",
    "feed_forward.w3.weight": "ffn_up.weight",
    "feed_forward.gate.weight": "ffn_gate_inp.weight",
    "feed_forward.expert_bias": "exp_probs_b.bias",
    **{f"feed_forward.{x}_proj.weight": f"ffn_{x}.weight" for x in ("gate", "up", "down")},
    **{f"feed_forward.switch_mlp.{x}_proj.weight": f"ffn_{x}_exps.weight" for x in ("gate", "up", "down")},
}


def converted(weights: dict[str, Array], config: dict[str, Any]) -> dict[str, Array]:
    return {
        name: matrix_of_convolution(value) if own == "conv.conv.weight" else value
        for name, own, value in renamed(weights, NAMES)
    }


def initial(name: str, random: Array) -> Array | None:
    """Layers that outweigh the tied embeddings: or each token would be its own likeliest successor."""
    if name.endswith("norm.weight"):
        return None
    if "embed" in name:
        return 0.3 * random
    if "conv.conv" in name:
        return random
    return 2 * random * random.shape[-1] ** -0.5 if random.ndim > 1 else None


DENSE = Case("lfm2", "lfm2", CONFIG, METADATA, converted, initial=initial)
CASES = [
    DENSE,
    replace(
        DENSE,
        id="lfm2moe",
        architecture="lfm2moe",
        config=MIXTURE,
        metadata=METADATA
        | {
            "block_count": 3,
            "attention.head_count_kv": [0, 0, 2],
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 32,
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,
        },
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.head_count_kv", [2, 2, 2, 2]),
        ("attention.head_count_kv", [0, 2, 0, 4]),
        ("attention.sliding_window", 64),
        ("attention.causal", False),
        ("rope.scaling.factor", 2.0),
    ],
)
def test_what_the_stock_class_cannot_compute_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    path = write_case(tmp_path / "odd.gguf", DENSE, floats_of(DENSE)[1], {key: value})
    with pytest.raises(UnsupportedModel, match=key):
        build_model(read_header(path))
