"""gemma3n."""

from __future__ import annotations

import statistics
from typing import Any

import gguf
import numpy as np

from tests.engines.gguf.families.helpers_dense import CONFIG, keys
from tests.engines.gguf.families.helpers_family import Array, Case, Weights, checks

LAYERS, SHARED = 6, 3
SLIDES = [True, True, False] * 2
TEXT: dict[str, Any] = CONFIG | {
    "num_hidden_layers": LAYERS,
    "head_dim": 16,
    "num_kv_shared_layers": SHARED,
    "sliding_window": 8,
    "rope_local_base_freq": 10000.0,
    "rope_theta": 1e6,
    "final_logit_softcapping": 3.0,
    "layer_types": ["sliding_attention" if slide else "full_attention" for slide in SLIDES],
    "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0, 0.0],
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 96,
    "altup_num_inputs": 4,
    "altup_coef_clip": 120.0,
    "altup_correct_scale": True,
    "altup_active_idx": 0,
    "laurel_rank": 32,
}
GEMMA3N = TEXT | {"model_type": "gemma3n", "text_config": TEXT | {"model_type": "gemma3n_text"}}
QUANTILE = statistics.NormalDist().inv_cdf(0.95)
KEYS: dict[str, Any] = {
    "feed_forward_length": [96] * LAYERS,
    "attention__sliding_window": 8,
    "attention__sliding_window_pattern": SLIDES,
    "attention__shared_kv_layers": SHARED,
    "rope__freq_base_swa": 10000.0,
    "final_logit_softcapping": 3.0,
    "altup__active_idx": 0,
    "altup__num_inputs": 4,
    "embedding_length_per_layer_input": 32,
    "activation_sparsity_scale": [QUANTILE, QUANTILE, *[float("-inf")] * 4],
}


def tensors(weights: Weights, config: dict[str, Any]) -> Weights:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3N, LAYERS)
    rest, converted = dict(weights), {}
    for stock, name in (("altup_projections", "altup_proj"), ("altup_unembed_projections", "altup_unembd_proj")):
        streams = [rest.pop(f"model.language_model.{stock}.{stream}.weight") for stream in range(3)]
        converted[f"{name}.weight"] = np.stack(streams)
    for name, value in rest.items():
        suffixed = name.replace("model.language_model.", "model.") + (".weight" if name.endswith("_scale") else "")
        renamed = names.get_name(suffixed, try_suffixes=(".weight",))
        assert renamed is not None, name
        converted[renamed] = value
    return converted


def initial(name: str, random: Array) -> Array | None:
    if name.endswith("correct_output_scale"):
        return 1 + 0.2 * random
    return 0.1 * random if name.endswith("embed_tokens.weight") else None


CASES = [
    Case(
        "gemma3n",
        "gemma3n",
        GEMMA3N,
        keys(TEXT, **KEYS),
        tensors,
        initial=initial,
        floats=("altup_correct_coef", "altup_predict_coef", "altup_router"),
        required=("block_count", "attention.sliding_window", "activation_sparsity_scale"),
    )
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
