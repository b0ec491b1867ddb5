"""baichuan, ernie4_5, exaone, internlm2, qwen, seed_oss and xverse, against mlx-lm's class of their own where there is one."""

from __future__ import annotations

import re
from typing import Any

from tests.engines.gguf.families.helpers_dense import (
    CONFIG,
    LLAMA3,
    MORE_HEADS,
    by_name,
    faint_embeddings,
    interleaved,
    keys,
    llama3_factors,
)
from tests.engines.gguf.families.helpers_family import Array, Case, Weights, Wide, checks

INTERNLM2: dict[str, Any] = CONFIG | {"model_type": "internlm2", "bias": False, "tie_word_embeddings": False}
ERNIE: dict[str, Any] = CONFIG | {"model_type": "ernie4_5", "head_dim": 32, "use_bias": False}
EXAONE: dict[str, Any] = CONFIG | {
    "model_type": "exaone",
    "num_layers": 3,
    "layer_norm_epsilon": 1e-5,
    "rope_scaling": LLAMA3,
}
SEED: dict[str, Any] = CONFIG | {
    "model_type": "seed_oss",
    "head_dim": 32,
    "attention_bias": True,
    "tie_word_embeddings": False,
}


LLAMA: dict[str, Any] = CONFIG | {"model_type": "llama", "tie_word_embeddings": False}
QWEN: dict[str, Any] = CONFIG | {
    "model_type": "qwen",
    "num_key_value_heads": 4,
    "kv_channels": 16,
    "layer_norm_epsilon": 1e-5,
    "intermediate_size": 192,
}
QWEN_NAMES = {
    "ln_1.weight": "attn_norm.weight",
    "ln_2.weight": "ffn_norm.weight",
    "attn.c_attn.weight": "attn_qkv.weight",
    "attn.c_attn.bias": "attn_qkv.bias",
    "attn.c_proj.weight": "attn_output.weight",
    "mlp.w1.weight": "ffn_up.weight",
    "mlp.w2.weight": "ffn_gate.weight",
    "mlp.c_proj.weight": "ffn_down.weight",
    "transformer.wte.weight": "token_embd.weight",
    "transformer.ln_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def qwen_tensors(weights: Weights, config: dict[str, Any]) -> Weights:
    converted = {}
    for name, value in weights.items():
        match = re.fullmatch(r"(?:transformer\.h\.(\d+)\.)?(.+)", name)
        assert match is not None, name
        layer, rest = match.groups()
        converted[f"blk.{layer}.{QWEN_NAMES[rest]}" if layer else QWEN_NAMES[rest]] = value
    return converted


def qwen_initial(name: str, random: Array) -> Array | None:
    if ".ln_" in name:
        return 1 + 0.2 * random
    return random if name.endswith("wte.weight") else None


def internlm2_tensors(weights: Weights, config: dict[str, Any]) -> Weights:
    """Q, K and V lie together by KV head: its query heads, its key head, its value head."""
    rest, split = dict(weights), {}
    for name in [name for name in weights if ".wqkv." in name]:
        value, layer = rest.pop(name), re.findall(r"\d+", name)[0]
        groups = value.reshape(2, 4, -1, *value.shape[1:])
        parts = {"q": groups[:, :2], "k": groups[:, 2], "v": groups[:, 3]}
        for part, rows in parts.items():
            whole = rows.reshape(-1, *value.shape[1:])
            split[f"blk.{layer}.attn_{part}.weight"] = interleaved(f".{part}_proj.", whole, config)
    return by_name("internlm2")(rest, config) | split


CASES = [
    Case("internlm2", "internlm2", INTERNLM2, keys(INTERNLM2), internlm2_tensors),
    Case("ernie4_5", "ernie4_5", ERNIE, keys(ERNIE), by_name("ernie4_5"), initial=faint_embeddings),
    Case(
        "ernie4_5-biased",
        "ernie4_5",
        ERNIE | {"use_bias": True},
        keys(ERNIE),
        by_name("ernie4_5"),
        initial=faint_embeddings,
    ),
    Case(
        "exaone",
        "exaone",
        EXAONE,
        keys(EXAONE, rope__dimension_count=16, attention__layer_norm_epsilon=1e-5),
        by_name("exaone"),
        extra={"rope_freqs.weight": llama3_factors(16, 10000.0)},
        wide=Wide(*MORE_HEADS),
    ),
    Case("seed_oss", "seed_oss", SEED, keys(SEED), by_name("seed_oss")),
]
CASES += [
    Case(
        "baichuan",
        "baichuan",
        LLAMA,
        keys(LLAMA, rope__dimension_count=16),
        by_name("baichuan", interleaved),
    ),
    Case("xverse", "xverse", LLAMA, keys(LLAMA, rope__dimension_count=16), by_name("xverse", interleaved)),
    Case(
        "qwen",
        "qwen",
        QWEN,
        keys(QWEN, rope__dimension_count=16),
        qwen_tensors,
        initial=qwen_initial,
        wide=Wide({"kv_channels": 64}),
    ),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
