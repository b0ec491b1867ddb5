"""BERT (Devlin et al., 2018) and RoBERTa with its kin (XLM-R): learned positions, norms behind the sums, a plain feed-forward part.

RoBERTa's positions begin behind the padding token's id; in GGUF files the rows before that have been cut off.
"""

from __future__ import annotations

from engines.encoders.blueprint import Blueprint
from engines.encoders.families import jina_bert_v2
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

_HF_NAMES = {
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "query": "encoder.layer.{i}.attention.self.query",
    "key": "encoder.layer.{i}.attention.self.key",
    "value": "encoder.layer.{i}.attention.self.value",
    "output": "encoder.layer.{i}.attention.output.dense",
    "after_attention": "encoder.layer.{i}.attention.output.LayerNorm",
    "up": "encoder.layer.{i}.intermediate.dense",
    "down": "encoder.layer.{i}.output.dense",
    "after_feed_forward": "encoder.layer.{i}.output.LayerNorm",
}
# Of BERTs written around flash attention (Jina's reranker v2).
_FLASH_NAMES = {
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "embedding_norm": "emb_ln",
    "joined": "encoder.layers.{i}.mixer.Wqkv",
    "output": "encoder.layers.{i}.mixer.out_proj",
    "after_attention": "encoder.layers.{i}.norm1",
    "up": "encoder.layers.{i}.mlp.fc1",
    "down": "encoder.layers.{i}.mlp.fc2",
    "after_feed_forward": "encoder.layers.{i}.norm2",
}


def from_gguf(keys: Hyperparameters, header: GgufHeader) -> Blueprint:
    width, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    layers = layer_count(header.path, keys.integer("block_count"), len(header.tensors))
    keys.integer("attention.head_count_kv", heads)
    if keys.flag("attention.causal", False):
        raise keys.refusal("attention.causal", "only encoders are supported here")
    names = {**GGUF_POST_NORM, "positions": "position_embd", "types": "token_types"}
    if "token_types.weight" not in header.tensors:
        del names["types"]
    shape = Shape(
        layers=(Layer(),) * layers,
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
    )
    return Blueprint("bert", shape, names, biased=True)


def from_hf(config: HfConfig, header: SafetensorsHeader) -> Blueprint:
    model_type = config.text("model_type")
    if config.values.get("position_embedding_type") == "alibi":
        return jina_bert_v2.from_hf(config, header)
    config.expect("position_embedding_type", "absolute")
    if config.flag("is_decoder", False):
        raise UnsupportedModel(f"{config.path}: is_decoder is true; only encoders are supported here")
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    # Rows of positions before the first token's: RoBERTa's padding token and all before it.
    offset = 0 if model_type == "bert" else config.integer("pad_token_id", default=1, least=0) + 1
    flash = any(name.endswith("encoder.layers.0.mixer.Wqkv.weight") for name in header.tensors)
    names = prefixed(header, "embeddings.word_embeddings", _FLASH_NAMES if flash else _HF_NAMES)
    check_types(config, header, names)
    shape = Shape(
        layers=(Layer(),) * layer_count(config.path, config.integer("num_hidden_layers"), len(header.tensors)),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_width=width // heads,
        feed_forward=config.integer("intermediate_size"),
        vocabulary=config.integer("vocab_size"),
        context=config.integer("max_position_embeddings", least=offset + 1) - offset,
        norm="layer",
        epsilon=config.number("layer_norm_eps", default=1e-12),
        activation=activation_of(config.path, config.text("hidden_act", default="gelu")),
        position_offset=offset,
    )
    return Blueprint(model_type, shape, names, ignored=HF_IGNORED, biased=True)
