"""Nomic BERT (Nussbaum et al., 2024): rotary positions, a gated feed-forward part without biases; its v2 is a mixture of experts
in every second layer, with a plain feed-forward part in the others."""

from __future__ import annotations

from engines.encoders.blueprint import Blueprint
from engines.encoders.families.naming import (
    GGUF_POST_NORM,
    HF_IGNORED,
    activation_of,
    check_types,
    layer_count,
    plain_rope,
    prefixed,
    rows_of,
)
from engines.encoders.hf_config import HfConfig
from engines.encoders.shape import Layer, Shape
from engines.errors import CheckpointError, UnsupportedModel
from engines.gguf.config import MAX_CONTEXT, Hyperparameters
from engines.header import GgufHeader, SafetensorsHeader

__all__ = ["from_gguf", "from_hf"]

_HF_NAMES = {
    "words": "embeddings.word_embeddings",
    "types": "embeddings.token_type_embeddings",
    "embedding_norm": "emb_ln",
    "joined": "encoder.layers.{i}.attn.Wqkv",
    "output": "encoder.layers.{i}.attn.out_proj",
    "after_attention": "encoder.layers.{i}.norm1",
    "up": "encoder.layers.{i}.mlp.fc11",
    "gate": "encoder.layers.{i}.mlp.fc12",
    "down": "encoder.layers.{i}.mlp.fc2",
    "after_feed_forward": "encoder.layers.{i}.norm2",
}


def from_gguf(keys: Hyperparameters, header: GgufHeader) -> Blueprint:
    width, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    count = layer_count(header.path, keys.integer("block_count"), len(header.tensors))
    keys.integer("attention.head_count_kv", heads)
    keys.flag("attention.causal", False)
    plain_rope(keys, width // heads)
    theta = keys.number("rope.freq_base", 1000.0)
    experts = keys.integer("expert_count", 0, least=0)
    every = keys.integer("moe_every_n_layers", 0, least=0)
    used = keys.integer("expert_used_count", 0, least=0)
    mixed = experts > 0 and every > 0
    layers = tuple(Layer(rope_theta=theta, experts=mixed and i % every == 1) for i in range(count))
    names = {
        **GGUF_POST_NORM,
        "router": "blk.{i}.ffn_gate_inp",
        "expert_up": "blk.{i}.ffn_up_exps",
        "expert_down": "blk.{i}.ffn_down_exps",
    }
    if "token_types.weight" in header.tensors:
        names["types"] = "token_types"
    shape = Shape(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=heads,
        head_width=width // heads,
        feed_forward=keys.integer("feed_forward_length"),
        vocabulary=rows_of(header, "token_embd"),
        context=keys.integer("context_length", most=MAX_CONTEXT),
        norm="layer",
        epsilon=keys.number("attention.layer_norm_epsilon"),
        activation="silu" if "blk.0.ffn_gate.weight" in header.tensors else "gelu",
        experts_used=used,
    )
    return Blueprint("nomic-bert-moe" if mixed else "nomic-bert", shape, names, expert_count=experts)


def from_hf(config: HfConfig, header: SafetensorsHeader) -> Blueprint:
    if config.has("num_experts") or config.has("moe_every_n_layers"):
        raise UnsupportedModel(f"{config.path}: Nomic's mixture of experts runs from GGUF files only")
    config.expect("prenorm", False)
    config.expect("rotary_emb_interleaved", False)
    config.expect("rotary_emb_fraction", 1.0, 1)
    rope = config.inner("rope_parameters")
    width, heads = config.integer("hidden_size", "n_embd"), config.integer("num_attention_heads", "n_head")
    names = prefixed(header, "embeddings.word_embeddings", _HF_NAMES)
    check_types(config, header, names)
    function = config.text("hidden_act", "activation_function", default="silu")
    gate = f"{names['gate'].format(i=0)}.weight"
    if function in ("swiglu", "geglu") and gate not in header.tensors:
        raise CheckpointError(f"{header.paths[0]}: tensor '{gate}' is missing")
    shape = Shape(
        layers=(Layer(rope_theta=rope.number("rope_theta", default=config.number("rotary_emb_base", default=1000.0))),)
        * layer_count(config.path, config.integer("num_hidden_layers", "n_layer"), len(header.tensors)),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_width=width // heads,
        feed_forward=config.integer("intermediate_size", "n_inner"),
        vocabulary=rows_of(header, names["words"]),
        context=config.integer("max_position_embeddings", "n_positions", default=2048),
        norm="layer",
        epsilon=config.number("layer_norm_eps", "layer_norm_epsilon", default=1e-12),
        activation=activation_of(config.path, function),
    )
    return Blueprint("nomic_bert", shape, names, ignored=HF_IGNORED)
