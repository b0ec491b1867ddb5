"""gpt2, gptneox and starcoder."""

from __future__ import annotations

import re
from typing import Any

from tests.engines.gguf.families.helpers_dense import CONFIG, keys_of_layer_norms
from tests.engines.gguf.families.helpers_family import Array, Case, Weights, Wide, checks

GPT2: dict[str, Any] = CONFIG | {
    "model_type": "gpt2",
    "num_key_value_heads": 4,
    "intermediate_size": 256,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_inner": 256,
    "n_ctx": 256,
    "n_positions": 256,
    "layer_norm_epsilon": 1e-5,
}
STARCODER = GPT2 | {"model_type": "gpt_bigcode", "num_key_value_heads": 1}
NEOX = GPT2 | {
    "model_type": "gpt_neox",
    "layer_norm_eps": 1e-5,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
}
# A key that these converters do not write.
NO_BASE: dict[str, Any] = {"rope__freq_base": None}
NEOX_KEYS: dict[str, Any] = NO_BASE | {"rope__dimension_count": 4, "attention__head_count_kv": None}
WIDE = Wide(metadata={"feed_forward_length": 1024})  # four times the width, as the stock classes have it
NAMES = {
    "wte": "token_embd",
    "embed_in": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "final_layer_norm": "output_norm",
    "embed_out": "output",
    "ln_1": "attn_norm",
    "input_layernorm": "attn_norm",
    "ln_2": "ffn_norm",
    "post_attention_layernorm": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attention.query_key_value": "attn_qkv",
    "attn.c_proj": "attn_output",
    "attention.dense": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "mlp.dense_4h_to_h": "ffn_down",
}


def tensors(weights: Weights, config: dict[str, Any]) -> Weights:
    converted = {}
    for name, value in weights.items():
        match = re.fullmatch(r"\w+\.(?:h\.(\d+)\.)?(.+)\.(weight|bias)", name)
        assert match is not None, name
        layer, rest, kind = match.groups()
        if rest == "attention.query_key_value":  # by head: its query, its key, its value
            value = value.reshape(4, 3, -1, *value.shape[1:]).swapaxes(0, 1).reshape(value.shape)
        block = f"blk.{layer}." if layer else ""
        converted[f"{block}{NAMES[rest]}.{kind}"] = value
    return converted


def initial(name: str, random: Array) -> Array | None:
    if name.endswith(".bias"):
        return 0.02 * random
    if re.search(r"ln_\w\.weight|norm\.weight", name):
        return 1 + 0.2 * random
    if name.endswith("embed_in.weight"):
        return random
    return 0.05 * random if name.endswith(("wte.weight", "wpe.weight")) else None


CASES = [
    Case("gpt2", "gpt2", GPT2, keys_of_layer_norms(GPT2, **NO_BASE), tensors, initial=initial, wide=WIDE),
    Case(
        "gptneox",
        "gptneox",
        NEOX,
        keys_of_layer_norms(NEOX, use_parallel_residual=True, **NEOX_KEYS),
        tensors,
        initial=initial,
        wide=WIDE,
    ),
    Case(
        "gptneox-serial",
        "gptneox",
        NEOX | {"use_parallel_residual": False},
        keys_of_layer_norms(NEOX, use_parallel_residual=False, **NEOX_KEYS),
        tensors,
        initial=initial,
        light=True,
    ),
    Case(
        "starcoder",
        "starcoder",
        STARCODER,
        keys_of_layer_norms(STARCODER, **NO_BASE),
        tensors,
        initial=initial,
        rows=(),
    ),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
