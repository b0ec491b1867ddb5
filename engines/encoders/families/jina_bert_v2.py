"""Jina's BERT v2 (Günther et al., 2023): ALiBi in place of positions, a gated feed-forward part, norms behind the sums.

Its code model also has norms of queries and keys, over all heads together.
"""

from __future__ import annotations

from engines.encoders.blueprint import Blueprint
from engines.encoders.families.naming import (
    GGUF_POST_NORM,
    HF_IGNORED,
    activation_of,
    check_types,
    layer_count,
    prefixed,
    rows_of,
)
from engines.encoders.hf_config import HfConfig
from engines.encoders.shape import Layer, Shape
from engines.errors import UnsupportedModel
from engines.gguf.config import MAX_CONTEXT, Hyperparameters
from engines.header import GgufHeader, SafetensorsHeader

__all__ = ["from_gguf", "from_hf"]

_ABSENT = frozenset({"query_norm", "key_norm", "types"})
_MAX_BIAS = 8.0

_HF_NAMES = {
    "words": "embeddings.word_embeddings",
    "types": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "query": "encoder.layer.{i}.attention.self.query",
    "key": "encoder.layer.{i}.attention.self.key",
    "value": "encoder.layer.{i}.attention.self.value",
    "query_norm": "encoder.layer.{i}.attention.self.layer_norm_q",
    "key_norm": "encoder.layer.{i}.attention.self.layer_norm_k",
    "output": "encoder.layer.{i}.attention.output.dense",
    "after_attention": "encoder.layer.{i}.attention.output.LayerNorm",
    "gate_up": "encoder.layer.{i}.mlp.gated_layers",
    "down": "encoder.layer.{i}.mlp.wo",
    "after_feed_forward": "encoder.layer.{i}.mlp.layernorm",
}


def from_gguf(keys: Hyperparameters, header: GgufHeader) -> Blueprint:
    width, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    keys.integer("attention.head_count_kv", heads)
    keys.flag("attention.causal", False)
    if keys.number("attention.max_alibi_bias", _MAX_BIAS) != _MAX_BIAS:
        raise keys.refusal("attention.max_alibi_bias", f"only {_MAX_BIAS} is supported")
    if "blk.0.attn_norm_2.weight" in header.tensors:
        raise UnsupportedModel(f"{header.path}: the second norm of attention (attn_norm_2) is not supported")
    names = {
        **GGUF_POST_NORM,
        "query_norm": "blk.{i}.attn_q_norm",
        "key_norm": "blk.{i}.attn_k_norm",
        "gate_up": "blk.{i}.ffn_up",
    }
    if "token_types.weight" in header.tensors:
        names["types"] = "token_types"
    shape = Shape(
        layers=(Layer(),) * layer_count(header.path, keys.integer("block_count"), len(header.tensors)),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_width=width // heads,
        feed_forward=keys.integer("feed_forward_length"),
        vocabulary=rows_of(header, "token_embd"),
        context=keys.integer("context_length", most=MAX_CONTEXT),
        norm="layer",
        epsilon=keys.number("attention.layer_norm_epsilon"),
        activation="gelu",
        alibi=True,
    )
    return Blueprint("jina-bert-v2", shape, names, absent=_ABSENT)


def from_hf(config: HfConfig, header: SafetensorsHeader) -> Blueprint:
    config.expect("feed_forward_type", "geglu")
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    names = prefixed(header, "embeddings.word_embeddings", _HF_NAMES)
    check_types(config, header, names)
    shape = Shape(
        layers=(Layer(),) * layer_count(config.path, config.integer("num_hidden_layers"), len(header.tensors)),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_width=width // heads,
        feed_forward=config.integer("intermediate_size"),
        vocabulary=config.integer("vocab_size"),
        context=config.integer("max_position_embeddings"),
        norm="layer",
        epsilon=config.number("layer_norm_eps", default=1e-12),
        activation=activation_of(config.path, config.text("hidden_act", default="gelu")),
        alibi=True,
    )
    return Blueprint("jina-bert-v2", shape, names, absent=_ABSENT, ignored=HF_IGNORED)
