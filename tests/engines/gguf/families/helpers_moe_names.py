"""How llama.cpp's converter names the tensors of mixtures, and the numbers that the tiny ones of these tests have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from engines.gguf.writer import CheckpointValue
from tests.engines.gguf.families.helpers_family import VOCABULARY, Array, Weights

__all__ = ["DECODER", "GATED", "QK_NORMS", "ROUTED", "SHARED", "interleaved", "moe_config", "moe_metadata", "renamed"]

DECODER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
"""Of a block: what follows ``model.layers.0.`` and ``blk.0.``, without ``.weight`` and ``.bias``."""

QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
GATED = {f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
ROUTED = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    **{f"mlp.switch_mlp.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
}
SHARED = {f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}

_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def moe_config(model_type: str, **changes: Any) -> dict[str, Any]:
    """A small configuration: three layers, four heads, two KV heads."""
    return {
        "model_type": model_type,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 256,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        **changes,
    }


def moe_metadata(config: dict[str, Any], extra: Mapping[str, CheckpointValue]) -> dict[str, CheckpointValue]:
    """The keys that all converters write, and others."""
    return {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_theta"]),
        **extra,
    }


def renamed(
    names: Mapping[str, str],
    transforms: Mapping[str, Callable[[Array, dict[str, Any]], Array]] | None = None,
    whole: Mapping[str, str] | None = None,
) -> Callable[[Weights, dict[str, Any]], Weights]:
    """Renames every tensor, and transforms those of these GGUF names (of a block without ``blk.0.``, without suffix).

    A name of ``names`` that is a parameter's own path (``self_attn.sinks``) stands for the whole GGUF name.
    """

    def convert(weights: Weights, config: dict[str, Any]) -> Weights:
        converted: Weights = {}
        for name, value in weights.items():
            block = re.match(r"model\.layers\.(\d+)\.(.+)", name)
            table, prefix, rest = (
                (names, f"blk.{block[1]}.", block[2]) if block else (_WHOLE | dict(whole or {}), "", name)
            )
            if rest in table:
                stem, suffix = table[rest], ""
            else:
                path, _, last = rest.rpartition(".")
                stem, suffix = table[path], f".{last}"
            transform = (transforms or {}).get(stem)
            converted[f"{prefix}{stem}{suffix}"] = transform(value, config) if transform else value
        return converted

    return convert


def interleaved(heads: str) -> Callable[[Array, dict[str, Any]], Array]:
    """Rows of each head from halves (0, 1, …, d/2, d/2+1, …) to pairs (0, d/2, 1, d/2+1, …); ``heads`` is a key of the
    configuration."""

    def convert(value: Array, config: dict[str, Any]) -> Array:
        count = config[heads]
        halves = value.reshape(count, 2, value.shape[0] // count // 2, *value.shape[1:])
        return halves.swapaxes(1, 2).reshape(value.shape)

    return convert
