"""ModernBERT (Warner et al., 2024): norms before the parts, rotary positions, a gated feed-forward part whose two matrices are one,
and windows in all layers but every third. The first layer's attention reads the embedding as it is."""

from __future__ import annotations

import re

from engines.encoders.blueprint import Blueprint
from engines.encoders.families.naming import activation_of, layer_count, layer_kinds, plain_rope, prefixed, rows_of
from engines.encoders.hf_config import HfConfig
from engines.encoders.shape import Layer, Shape
from engines.gguf.config import MAX_CONTEXT, Hyperparameters
from engines.header import GgufHeader, SafetensorsHeader

__all__ = ["from_gguf", "from_hf"]

_ABSENT = frozenset({"before_attention"})
_EVERY = 3  # layers, of which the first sees everything
_LOCAL_THETA = 10_000.0

_GGUF_NAMES = {
    "words": "token_embd",
    "embedding_norm": "token_embd_norm",
    "before_attention": "blk.{i}.attn_norm",
    "joined": "blk.{i}.attn_qkv",
    "output": "blk.{i}.attn_output",
    "before_feed_forward": "blk.{i}.ffn_norm",
    "gate_up": "blk.{i}.ffn_up",
    "down": "blk.{i}.ffn_down",
    "final_norm": "output_norm",
}
_HF_NAMES = {
    "words": "embeddings.tok_embeddings",
    "embedding_norm": "embeddings.norm",
    "before_attention": "layers.{i}.attn_norm",
    "joined": "layers.{i}.attn.Wqkv",
    "output": "layers.{i}.attn.Wo",
    "before_feed_forward": "layers.{i}.mlp_norm",
    "gate_up": "layers.{i}.mlp.Wi",
    "down": "layers.{i}.mlp.Wo",
    "final_norm": "final_norm",
}


def from_gguf(keys: Hyperparameters, header: GgufHeader) -> Blueprint:
    width, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    count = layer_count(header.path, keys.integer("block_count"), len(header.tensors))
    keys.integer("attention.head_count_kv", heads)
    keys.flag("attention.causal", False)
    plain_rope(keys, width // heads)
    window = keys.integer("attention.sliding_window", most=MAX_CONTEXT)
    every = keys.integer("attention.sliding_window_pattern", _EVERY)
    theta = keys.number("rope.freq_base")
    local = keys.number("rope.freq_base_swa", _LOCAL_THETA)
    shape = Shape(
        layers=_layers(count, every, window, theta, local),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_width=width // heads,
        feed_forward=keys.integer("feed_forward_length"),
        vocabulary=rows_of(header, "token_embd"),
        context=keys.integer("context_length", most=MAX_CONTEXT),
        norm="layer",
        epsilon=keys.number("attention.layer_norm_epsilon"),
        activation=activation_of(header.path, keys.text("hidden_activation", "gelu")),
        pre_norm=True,
    )
    return Blueprint("modern-bert", shape, _GGUF_NAMES, absent=_ABSENT)


def from_hf(config: HfConfig, header: SafetensorsHeader) -> Blueprint:
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    count = layer_count(config.path, config.integer("num_hidden_layers"), len(header.tensors))
    rope = config.inner("rope_parameters")
    theta = rope.inner("full_attention").number(
        "rope_theta", default=config.number("global_rope_theta", default=160_000.0)
    )
    local = rope.inner("sliding_attention").number(
        "rope_theta", default=config.number("local_rope_theta", default=_LOCAL_THETA)
    )
    every = config.integer("global_attn_every_n_layers", default=_EVERY)
    window = config.integer("local_attention", default=128)
    layers = _layers(count, every, window, theta, local)
    kinds = layer_kinds(config, count)
    if kinds is not None:
        layers = _of_kinds(kinds, window, theta, local)
    shape = Shape(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=heads,
        head_width=width // heads,
        feed_forward=config.integer("intermediate_size"),
        vocabulary=config.integer("vocab_size"),
        context=config.integer("max_position_embeddings"),
        norm="layer",
        epsilon=config.number("norm_eps", default=1e-5),
        activation=activation_of(config.path, config.text("hidden_activation", default="gelu")),
        pre_norm=True,
    )
    names = prefixed(header, "embeddings.tok_embeddings", _HF_NAMES)
    return Blueprint("modernbert", shape, names, absent=_ABSENT, ignored=re.compile(r"^head\.|^decoder\."))


def _layers(count: int, every: int, window: int, theta: float, local: float) -> tuple[Layer, ...]:
    return _of_kinds([i % every != 0 for i in range(count)], window, theta, local)


def _of_kinds(kinds: list[bool], window: int, theta: float, local: float) -> tuple[Layer, ...]:
    far, near = Layer(rope_theta=theta), Layer(rope_theta=local, window=window // 2)
    return tuple(near if slides else far for slides in kinds)
