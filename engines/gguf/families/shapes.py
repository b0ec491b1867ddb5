"""The shapes that metadata implies for a model's weights, said by the paths of the stock class's modules, without making any.

A rule is a tuple of axes. An axis is a number, or the name of a width: a key of the plan's configuration, or one of those that
:func:`widths_of` works out of keys whose names differ between stock classes (``hidden``, ``queries``, ``experts``). What is
particular to a family is in its own file: rules in ``Family.shapes``, widths that differ between layers in ``Family.widths``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from engines.gguf.names import SlotKind

__all__ = ["SHAPES", "WHOLE_QK_NORMS", "Axes", "Widths", "expected_shape", "layer_of", "widths_of"]

Axes = tuple[str | int, ...]
"""A rule: the axes of a weight."""

Widths = Callable[[Mapping[str, Any], int], Mapping[str, int]]
"""From a configuration and the number of a layer to widths that are to take the place of the usual ones."""

_LAYER: Final = re.compile(r"\b(?:layers|h)\.(\d+)\.")

# Names of the same number in different stock classes; the first that is there counts.
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "hidden": ("hidden_size",),
    "vocabulary": ("vocab_size",),
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads",),
    "key": ("head_dim",),
    "value": ("v_head_dim", "head_dim"),
    "inner": ("intermediate_size",),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "expert_inner": ("moe_intermediate_size", "intermediate_size"),
    "expert_hidden": ("moe_latent_size", "hidden_size"),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "state_heads": ("mamba_n_heads", "mamba_num_heads", "num_heads"),
    "state_head": ("mamba_d_head", "mamba_head_dim", "head_dim"),
    "state": ("mamba_d_state", "ssm_state_size", "state_size"),
    "state_groups": ("mamba_n_groups", "n_groups"),
    "kernel": ("mamba_d_conv", "conv_kernel", "linear_conv_kernel_dim", "conv_L_cache"),
}
_SHARED_INNER: Final = (
    "moe_shared_expert_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "share_expert_dim",
)

_IN: Final[Axes] = ("inner", "hidden")
_OUT: Final[Axes] = ("hidden", "inner")
_ROUTER: Final[Axes] = ("experts", "hidden")


def _gated(block: str, inner: Axes, outer: Axes) -> dict[str, Axes]:
    return {f"{block}.gate_proj": inner, f"{block}.up_proj": inner, f"{block}.down_proj": outer}


def _state_space(block: str) -> dict[str, Axes]:
    """A Mamba 2 layer."""
    return {
        f"{block}.in_proj": ("state_space_in", "hidden"),
        f"{block}.conv1d.weight": ("state_channels", "kernel", 1),
        f"{block}.conv1d.bias": ("state_channels",),
        f"{block}.A_log": ("state_heads",),
        f"{block}.D": ("state_heads",),
        f"{block}.dt_bias": ("state_heads",),
        f"{block}.norm": ("state_inner",),
        f"{block}.out_proj": ("hidden", "state_inner"),
    }


_LATENT: Final[Mapping[str, Axes]] = {
    "q_a_proj": ("q_lora_rank", "hidden"),
    "q_a_layernorm": ("q_lora_rank",),
    "q_b_proj": ("queries", "q_lora_rank"),
    "kv_a_proj_with_mqa": ("latent_and_rotated", "hidden"),
    "kv_a_layernorm": ("kv_lora_rank",),
    "kv_b_proj": ("keys_and_values_of_latent", "kv_lora_rank"),
    "embed_q": ("heads", "kv_lora_rank", "qk_nope_head_dim"),
    "unembed_out": ("heads", "v_head_dim", "kv_lora_rank"),
}
"""Attention whose keys and values come from one latent vector."""

WHOLE_QK_NORMS: Final[Mapping[str, Axes]] = {"q_norm": ("queries",), "k_norm": ("keys",)}
"""Of families that normalise the queries of all heads together, and the keys."""

SHAPES: Final[Mapping[str, Axes]] = {
    **dict.fromkeys(("lm_head", "embed_out"), ("vocabulary", "hidden")),
    "wpe": ("n_positions", "hidden"),
    "pre_ff_layernorm.weight": ("hidden",),
    # Attention.
    "q_proj": ("queries", "hidden"),
    "k_proj": ("keys", "hidden"),
    "v_proj": ("values", "hidden"),
    **dict.fromkeys(("qkv_proj", "query_key_value", "attn.c_attn"), ("queries_keys_values", "hidden")),
    **dict.fromkeys(("o_proj", "self_attn.out_proj", "dense", "attn.c_proj"), ("hidden", "attended")),
    **dict.fromkeys(("q_norm", "k_norm", "self_attn.q_layernorm", "self_attn.k_layernorm"), ("key",)),
    **dict.fromkeys(("query_layernorm", "key_layernorm"), ("key",)),
    **dict.fromkeys(("sinks", "attention_sink_bias"), ("heads",)),
    **_LATENT,
    "self_attn.gate_proj": ("queries", "hidden"),
    # MLPs.
    **dict.fromkeys(("gate_proj", "up_proj", "w1", "w3", "fc1", "c_fc", "dense_h_to_4h"), _IN),
    **dict.fromkeys(("down_proj", "w2", "fc2", "mlp.c_proj", "dense_4h_to_h"), _OUT),
    "gate_up_proj": ("gate_and_up", "hidden"),
    # Experts.
    **dict.fromkeys(("mlp.gate", "feed_forward.gate", "block_sparse_moe.gate"), _ROUTER),
    **dict.fromkeys(("gate.weight", "gate.gate", "gate.gate_proj"), _ROUTER),
    **dict.fromkeys(("router", "router.gate", "router.layer", "router.proj"), _ROUTER),
    **dict.fromkeys(("e_score_correction_bias", "expert_bias", "router_bias"), ("experts",)),
    **_gated("switch_mlp", ("experts", "expert_inner", "hidden"), ("experts", "hidden", "expert_inner")),
    **_gated("experts", ("experts", "expert_inner", "hidden"), ("experts", "hidden", "expert_inner")),
    **_gated("switch_glu", ("experts", "expert_inner", "hidden"), ("experts", "hidden", "expert_inner")),
    "switch_mlp.fc1": ("experts", "expert_inner", "expert_hidden"),
    "switch_mlp.fc2": ("experts", "expert_hidden", "expert_inner"),
    "fc1_latent_proj": ("expert_hidden", "hidden"),
    "fc2_latent_proj": ("hidden", "expert_hidden"),
    **_gated("shared_experts", ("shared_inner", "hidden"), ("hidden", "shared_inner")),
    **_gated("shared_expert", ("shared_inner", "hidden"), ("hidden", "shared_inner")),
    **_gated("share_expert", ("shared_inner", "hidden"), ("hidden", "shared_inner")),
    "shared_mlp.input_linear": ("shared_gate_and_up", "hidden"),
    "shared_mlp.output_linear": ("hidden", "shared_inner"),
    "shared_expert_gate": (1, "hidden"),
    # Embeddings of the layers' own.
    "embed_tokens_per_layer": ("vocab_size_per_layer_input", "hidden_of_all_layers"),
    "per_layer_model_projection": ("hidden_of_all_layers", "hidden"),
    "per_layer_projection_norm": ("hidden_size_per_layer_input",),
    "per_layer_input_gate": ("hidden_size_per_layer_input", "hidden"),
    "per_layer_projection": ("hidden", "hidden_size_per_layer_input"),
    **_state_space("mamba"),
    **_state_space("mixer"),
}
"""Rules by the ends of paths, the longest that fits first: what stock classes have in common. Norms that have none are as wide as
the model, embeddings have a row of that width for each token."""

_BY_KIND: Final[Mapping[SlotKind, Axes]] = {
    SlotKind.NORM: ("hidden",),
    SlotKind.EMBEDDING: ("vocabulary", "hidden"),
}


def expected_shape(
    module: str, kind: SlotKind, own: Mapping[str, Axes], widths: Mapping[str, Any]
) -> tuple[int, ...] | None:
    """The shape of the weight of a stock module (of a PARAMETER: its own); None when no rule says it, or a width is not known.

    ``own`` are the family's rules, which come before the common ones, ``widths`` those of the module's layer.
    """
    ends = list(_ends(module))
    axes = next((rules[end] for rules in (own, SHAPES) for end in ends if end in rules), _BY_KIND.get(kind))
    if axes is None:
        return None
    sizes = [widths.get(axis) if isinstance(axis, str) else axis for axis in axes]
    known = tuple(size for size in sizes if type(size) is int)
    return known if len(known) == len(sizes) else None


def layer_of(module: str) -> int:
    """The number of the layer that a module is in; 0 for one that is in none."""
    match = _LAYER.search(module)
    return int(match[1]) if match else 0


def widths_of(config: Mapping[str, Any], layer: int, own: Widths | None = None) -> dict[str, Any]:
    """The keys of a configuration, and the widths named alike for all stock classes. ``own`` are the family's."""
    inner = config.get("text_config", config)
    widths = dict(inner) | {
        name: next((inner[key] for key in keys if inner.get(key)), None) for name, keys in _NAMES.items()
    }
    if "qk_nope_head_dim" in inner:
        widths["key"] = inner["qk_nope_head_dim"] + inner["qk_rope_head_dim"]
    shared = next((inner[key] for key in _SHARED_INNER if inner.get(key)), None)
    widths["shared_inner"] = shared or _product(widths, "shared_experts", "expert_inner")
    if own is not None:
        widths |= own(config, layer)
    for name, factors in _PRODUCTS.items():
        widths.setdefault(name, _product(widths, *factors))
    for name, terms in _SUMS.items():
        widths.setdefault(name, _sum(widths, *terms))
    return widths


_PRODUCTS: Final[Mapping[str, tuple[str | int, ...]]] = {
    "queries": ("heads", "key"),
    "keys": ("kv_heads", "key"),
    "values": ("kv_heads", "value"),
    "attended": ("heads", "value"),
    "gate_and_up": (2, "inner"),
    "shared_gate_and_up": (2, "shared_inner"),
    "hidden_of_all_layers": ("num_hidden_layers", "hidden_size_per_layer_input"),
    "state_inner": ("state_heads", "state_head"),
    "state_keys": ("state_groups", "state"),
    "not_rotated": ("heads", "qk_nope_head_dim"),
}
_SUMS: Final[Mapping[str, tuple[str, ...]]] = {
    "queries_keys_values": ("queries", "keys", "values"),
    "latent_and_rotated": ("kv_lora_rank", "qk_rope_head_dim"),
    "keys_and_values_of_latent": ("not_rotated", "attended"),
    "state_channels": ("state_inner", "state_keys", "state_keys"),
    "state_space_in": ("state_inner", "state_channels", "state_heads"),
}


def _product(widths: Mapping[str, Any], *factors: str | int) -> int | None:
    product = 1
    for factor in factors:
        size = widths.get(factor) if isinstance(factor, str) else factor
        if type(size) is not int:
            return None
        product *= size
    return product


def _sum(widths: Mapping[str, Any], *terms: str) -> int | None:
    sizes = [widths.get(term) for term in terms]
    known = [size for size in sizes if type(size) is int]
    return sum(known) if len(known) == len(sizes) else None


def _ends(module: str) -> Iterator[str]:
    """The ends of a path, longest first, numbers as stars."""
    parts = ["*" if part.isdigit() else part for part in module.split(".")]
    return (".".join(parts[start:]) for start in range(len(parts)))
