"""EmbeddingGemma (Schechter Vera et al., 2025): Gemma 3 without the causal mask, so that windows reach to both sides."""

from __future__ import annotations

import re

from engines.encoders.blueprint import Blueprint
from engines.encoders.families.naming import activation_of, layer_count, layer_kinds, plain_rope, prefixed, rows_of
from engines.encoders.families.qwen3 import GGUF_PRE_NORM, HF_DECODER
from engines.encoders.hf_config import HfConfig
from engines.encoders.shape import Layer, Shape
from engines.errors import UnsupportedModel
from engines.gguf.config import MAX_CONTEXT, Hyperparameters
from engines.header import GgufHeader, SafetensorsHeader

__all__ = ["from_gguf", "from_hf"]

_EVERY = 6  # layers, of which the last sees everything
_LOCAL_THETA = 10_000.0

_GGUF_NAMES = {
    **GGUF_PRE_NORM,
    "within_attention": "blk.{i}.post_attention_norm",
    "within_feed_forward": "blk.{i}.post_ffw_norm",
}
_HF_NAMES = {
    **HF_DECODER,
    "within_attention": "layers.{i}.post_attention_layernorm",
    "before_feed_forward": "layers.{i}.pre_feedforward_layernorm",
    "within_feed_forward": "layers.{i}.post_feedforward_layernorm",
}


def from_gguf(keys: Hyperparameters, header: GgufHeader) -> Blueprint:
    width, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    count = layer_count(header.path, keys.integer("block_count"), len(header.tensors))
    head_width = keys.integer("attention.key_length", width // heads)
    keys.integer("attention.value_length", head_width)
    plain_rope(keys, head_width)
    keys.flag("attention.causal", False)
    for part in ("dense_2", "dense_3"):  # the heads behind the pooling: their tensors say the same
        keys.integer(f"{part}_feat_in", width)
        keys.integer(f"{part}_feat_out", width)
    window = keys.integer("attention.sliding_window", 512, most=MAX_CONTEXT)
    slides = keys.integers("attention.sliding_window_pattern", count)
    every = _EVERY if slides is not None else keys.integer("attention.sliding_window_pattern", _EVERY)
    theta = keys.number("rope.freq_base", 1_000_000.0)
    local = keys.number("rope.freq_base_swa", _LOCAL_THETA)
    near = [bool(value) for value in slides] if slides is not None else [(i + 1) % every != 0 for i in range(count)]
    shape = Shape(
        layers=_layers(near, window, theta, local),
        width=width,
        heads=heads,
        kv_heads=keys.integer("attention.head_count_kv", heads),
        head_width=head_width,
        feed_forward=keys.integer("feed_forward_length"),
        vocabulary=rows_of(header, "token_embd"),
        context=keys.integer("context_length", most=MAX_CONTEXT),
        norm="rms",
        epsilon=keys.number("attention.layer_norm_rms_epsilon"),
        activation="gelu_tanh",
        pre_norm=True,
        embedding_scale=width**0.5,
    )
    return Blueprint("gemma-embedding", shape, _GGUF_NAMES)


def from_hf(config: HfConfig, header: SafetensorsHeader) -> Blueprint:
    if not config.flag("use_bidirectional_attention", False):
        raise UnsupportedModel(f"{config.path}: a Gemma 3 with a causal mask is no embedding model")
    config.expect("attention_bias", False)
    config.expect("attn_logit_softcapping", None)
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    count = layer_count(config.path, config.integer("num_hidden_layers"), len(header.tensors))
    rope = config.inner("rope_parameters")
    theta = rope.inner("full_attention").number("rope_theta", default=config.number("rope_theta", default=1_000_000.0))
    local = rope.inner("sliding_attention").number(
        "rope_theta", default=config.number("rope_local_base_freq", default=_LOCAL_THETA)
    )
    every = config.integer("sliding_window_pattern", "_sliding_window_pattern", default=_EVERY)
    near = layer_kinds(config, count) or [(i + 1) % every != 0 for i in range(count)]
    shape = Shape(
        layers=_layers(near, config.integer("sliding_window", default=512), theta, local),
        width=width,
        heads=heads,
        kv_heads=config.integer("num_key_value_heads"),
        head_width=config.integer("head_dim", default=256),
        feed_forward=config.integer("intermediate_size"),
        vocabulary=config.integer("vocab_size"),
        context=config.integer("max_position_embeddings", default=2048, most=MAX_CONTEXT),
        norm="rms",
        epsilon=config.number("rms_norm_eps", default=1e-6),
        activation=activation_of(config.path, config.text("hidden_activation", default="gelu_pytorch_tanh")),
        pre_norm=True,
        embedding_scale=width**0.5,
        attention_scale=config.number("query_pre_attn_scalar", default=256.0) ** -0.5,
        norm_offset=1.0,
    )
    names = prefixed(header, "embed_tokens", _HF_NAMES)
    return Blueprint("gemma3_text", shape, names, ignored=re.compile(r"^lm_head\."))


def _layers(near: list[bool], window: int, theta: float, local: float) -> tuple[Layer, ...]:
    return tuple(Layer(rope_theta=local, window=window // 2) if slides else Layer(rope_theta=theta) for slides in near)
