"""Qwen3 (Yang et al., 2025) as an embedding model and a reranker: a decoder whose last token stands for the text."""

from __future__ import annotations

import re

from engines.encoders.blueprint import Blueprint
from engines.encoders.families.naming import activation_of, layer_count, plain_rope, prefixed, rows_of
from engines.encoders.hf_config import HfConfig
from engines.encoders.shape import Layer, Shape
from engines.gguf.config import MAX_CONTEXT, Hyperparameters
from engines.header import GgufHeader, SafetensorsHeader

__all__ = ["GGUF_PRE_NORM", "HF_DECODER", "from_gguf", "from_hf"]

GGUF_PRE_NORM = {
    "words": "token_embd",
    "before_attention": "blk.{i}.attn_norm",
    "query": "blk.{i}.attn_q",
    "key": "blk.{i}.attn_k",
    "value": "blk.{i}.attn_v",
    "query_norm": "blk.{i}.attn_q_norm",
    "key_norm": "blk.{i}.attn_k_norm",
    "output": "blk.{i}.attn_output",
    "before_feed_forward": "blk.{i}.ffn_norm",
    "up": "blk.{i}.ffn_up",
    "gate": "blk.{i}.ffn_gate",
    "down": "blk.{i}.ffn_down",
    "final_norm": "output_norm",
}
HF_DECODER = {
    "words": "embed_tokens",
    "before_attention": "layers.{i}.input_layernorm",
    "query": "layers.{i}.self_attn.q_proj",
    "key": "layers.{i}.self_attn.k_proj",
    "value": "layers.{i}.self_attn.v_proj",
    "query_norm": "layers.{i}.self_attn.q_norm",
    "key_norm": "layers.{i}.self_attn.k_norm",
    "output": "layers.{i}.self_attn.o_proj",
    "up": "layers.{i}.mlp.up_proj",
    "gate": "layers.{i}.mlp.gate_proj",
    "down": "layers.{i}.mlp.down_proj",
    "final_norm": "norm",
}


def from_gguf(keys: Hyperparameters, header: GgufHeader) -> Blueprint:
    width, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    count = layer_count(header.path, keys.integer("block_count"), len(header.tensors))
    head_width = keys.integer("attention.key_length", width // heads)
    if keys.integer("attention.value_length", head_width) != head_width:
        raise keys.refusal("attention.value_length", f"only {head_width} is supported here")
    plain_rope(keys, head_width)
    if not keys.flag("attention.causal", True):
        raise keys.refusal("attention.causal", "only the decoder is supported here")
    shape = Shape(
        layers=(Layer(rope_theta=keys.number("rope.freq_base")),) * count,
        width=width,
        heads=heads,
        kv_heads=keys.integer("attention.head_count_kv", heads),
        head_width=head_width,
        feed_forward=keys.integer("feed_forward_length"),
        vocabulary=rows_of(header, "token_embd"),
        context=keys.integer("context_length", most=MAX_CONTEXT),
        norm="rms",
        epsilon=keys.number("attention.layer_norm_rms_epsilon"),
        activation="silu",
        pre_norm=True,
        causal=True,
    )
    return Blueprint("qwen3", shape, GGUF_PRE_NORM, ignored=re.compile(r"^output\.weight$"))


def from_hf(config: HfConfig, header: SafetensorsHeader) -> Blueprint:
    config.expect("attention_bias", False)
    config.expect("use_sliding_window", False)
    config.expect("rope_scaling", None)
    config.expect("is_causal", True)
    rope = config.inner("rope_parameters")
    rope.expect("rope_type", "default")
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    theta = rope.number("rope_theta", default=config.number("rope_theta", default=1_000_000.0))
    shape = Shape(
        layers=(Layer(rope_theta=theta),)
        * layer_count(config.path, config.integer("num_hidden_layers"), len(header.tensors)),
        width=width,
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", default=heads),
        head_width=config.integer("head_dim", default=width // heads),
        feed_forward=config.integer("intermediate_size"),
        vocabulary=config.integer("vocab_size"),
        context=config.integer("max_position_embeddings", default=32768, most=MAX_CONTEXT),
        norm="rms",
        epsilon=config.number("rms_norm_eps", default=1e-6),
        activation=activation_of(config.path, config.text("hidden_act", default="silu")),
        pre_norm=True,
        causal=True,
    )
    names = prefixed(
        header, "embed_tokens", {**HF_DECODER, "before_feed_forward": "layers.{i}.post_attention_layernorm"}
    )
    return Blueprint("qwen3", shape, names, ignored=re.compile(r"^lm_head\."))
