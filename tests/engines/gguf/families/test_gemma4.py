"""gemma4: as E2B and E4B, as 31B, and with experts as 26B-A4B."""

from __future__ import annotations

import re
from typing import Any

import gguf
import numpy as np

from tests.engines.gguf.families.helpers_dense import CONFIG, keys
from tests.engines.gguf.families.helpers_family import Array, Case, Weights, checks

SLIDES = (True, True, False, True, True, False)
SMALL: dict[str, Any] = CONFIG | {
    "model_type": "gemma4_text",
    "num_hidden_layers": 6,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": None,
    "num_kv_shared_layers": 3,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 96,
    "use_double_wide_mlp": True,
    "sliding_window": 8,
    "final_logit_softcapping": 3.0,
    "layer_types": ["sliding_attention" if slide else "full_attention" for slide in SLIDES],
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
}
LARGE = SMALL | {
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
}
MIXTURE = LARGE | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
KEYS: dict[str, Any] = {
    "attention__key_length": 32,
    "attention__value_length": 32,
    "attention__key_length_swa": 16,
    "attention__value_length_swa": 16,
    "attention__sliding_window": 8,
    "attention__sliding_window_pattern": list(SLIDES),
    "rope__dimension_count": 32,
    "rope__dimension_count_swa": 16,
    "rope__freq_base": 1e6,
    "rope__freq_base_swa": 10000.0,
    "final_logit_softcapping": 3.0,
}
SMALL_KEYS: dict[str, Any] = KEYS | {
    "attention__shared_kv_layers": 3,
    "embedding_length_per_layer_input": 32,
    "feed_forward_length": [96, 96, 96, 192, 192, 192],
}
LARGE_KEYS: dict[str, Any] = KEYS | {
    "attention__shared_kv_layers": 0,
    "embedding_length_per_layer_input": 0,
    "attention__head_count_kv": [2 if slide else 1 for slide in SLIDES],
}
MIXTURE_KEYS = LARGE_KEYS | {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
# A quarter of a head is rotated; the rest stands still.
FACTORS = {"rope_freqs.weight": np.array([1.0] * 4 + [1e30] * 12, np.float32)}
ROUTED = {
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.switch_glu.down_proj.weight": "ffn_down_exps.weight",
}


def tensors(weights: Weights, config: dict[str, Any]) -> Weights:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, 6)
    rest, converted = dict(weights), {}
    for layer in range(6):
        prefix = f"model.layers.{layer}"
        for stock, name in ROUTED.items():
            if f"{prefix}.{stock}" in rest:
                converted[f"blk.{layer}.{name}"] = rest.pop(f"{prefix}.{stock}")
        experts = [f"{prefix}.experts.switch_glu.{part}_proj.weight" for part in ("gate", "up")]
        if experts[0] in rest:
            converted[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate([rest.pop(name) for name in experts], 1)
    for name, value in rest.items():
        renamed = names.get_name(re.sub("layer_scalar$", "layer_scalar.weight", name), try_suffixes=(".weight",))
        assert renamed is not None, name
        converted[renamed] = value
    return converted


def initial(name: str, random: Array) -> Array | None:
    if name.endswith(("scale", "scalar")):
        return 1 + 0.2 * random
    return 0.02 * random if name.endswith("embed_tokens.weight") else None


def case(name: str, config: dict[str, Any], metadata: dict[str, Any]) -> Case:
    return Case(
        name,
        "gemma4",
        config,
        keys(config, **metadata),
        tensors,
        extra=FACTORS,
        initial=initial,
        required=("block_count", "attention.key_length_swa", "attention.sliding_window"),
    )


CASES = [
    case("gemma4-shared", SMALL, SMALL_KEYS),
    case("gemma4", LARGE, LARGE_KEYS),
    case("gemma4-experts", MIXTURE, MIXTURE_KEYS),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
