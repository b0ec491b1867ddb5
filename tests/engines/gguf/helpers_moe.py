"""Tiny stock mixtures of experts, and the same with K-quant experts in the places of mlx-lm's own."""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.switch_layers import SwitchLinear

from engines.gguf.experts import KQuantSwitchLinear
from engines.gguf.quants import quant_type
from tests.engines.gguf.helpers_blocks import random_blocks

__all__ = ["MIXTURES", "mixture"]

_BASE: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 200,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
_CONFIGS: dict[str, dict[str, Any]] = {
    "mixtral": _BASE | {"num_local_experts": 6, "num_experts_per_tok": 2},
    "qwen2_moe": _BASE
    | {
        "num_experts": 8,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 256,
    },
    "qwen3_moe": _BASE
    | {
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 256,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "head_dim": 64,
        "norm_topk_prob": True,
    },
}
MIXTURES = tuple(_CONFIGS)


def mixture(name: str, quants: tuple[str, ...] = ("Q4_K", "Q6_K")) -> tuple[Any, Any]:
    """A stock model of mlx-lm's class of this name, whose experts hold exactly dequantised weights, and the model with the
    blocks themselves in leaves of ours. Experts take the quant types in turn."""
    config = _CONFIGS[name] | {"model_type": name}
    module = importlib.import_module(f"mlx_lm.models.{name}")
    arguments = module.ModelArgs.from_dict(config)
    stock, ours = module.Model(arguments), module.Model(arguments)
    generator = np.random.default_rng(0)
    parameters: Any = tree_flatten(stock.parameters())
    random = [
        (path, mx.array((generator.standard_normal(value.shape) * value.shape[-1] ** -0.5).astype(np.float32)))
        if value.ndim > 1
        else (path, value)
        for path, value in parameters
    ]
    stock.update(tree_unflatten(random))
    leaves: Any = tree_flatten(stock.leaf_modules(), is_leaf=lambda leaf: isinstance(leaf, SwitchLinear))
    experts = [(path, leaf) for path, leaf in leaves if isinstance(leaf, SwitchLinear)]
    replaced = []
    for index, (path, leaf) in enumerate(experts):
        quant = quant_type(quants[index % len(quants)])
        count, rows, columns = leaf.weight.shape
        blocks = mx.array(random_blocks(quant, (count, rows), columns, seed=index, scale=columns**-0.5))
        replaced.append((path, KQuantSwitchLinear(blocks, quant)))
        leaf.weight = replaced[-1][1].weight
    ours.update(stock.parameters())
    ours.update_modules(tree_unflatten(replaced))
    mx.eval(stock.parameters(), ours.parameters())
    return stock.eval(), ours.eval()
