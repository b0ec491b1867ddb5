"""deci: blocks that differ, as Nemotron-Super 49B has them, and with a matrix in the place of attention as 51B has."""

from __future__ import annotations

from typing import Any

from tests.engines.gguf.families.helpers_dense import CONFIG, LLAMA3, by_name, interleaved, keys, llama3_factors
from tests.engines.gguf.families.helpers_family import Array, Case, Wide, checks

HEADS = [4, 0, 4, 0, 4]
KV_HEADS = [2, 0, 1, 0, 2]
INNER = [256, 512, 256, 0, 512]


def blocks(width: int, heads: int) -> list[dict[str, Any]]:
    return [
        {
            "attention": {"n_heads_in_group": heads // kv} if kv else {"no_op": True},
            "ffn": {"ffn_mult": inner * 1.5 / width} if inner else {"no_op": True},
        }
        for kv, inner in zip(KV_HEADS, INNER, strict=True)
    ]


def with_matrix(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A matrix in the place of the third block's attention."""
    return [*blocks[:2], blocks[2] | {"attention": {"replace_with_linear": True}}, *blocks[3:]]


DECI: dict[str, Any] = CONFIG | {
    "model_type": "nemotron-nas",
    "num_hidden_layers": 5,
    "rope_scaling": LLAMA3,
    "tie_word_embeddings": False,
    "block_configs": blocks(64, 4),
}
LINEAR = DECI | {"rope_scaling": None, "block_configs": with_matrix(blocks(64, 4))}
WIDE_CONFIG: dict[str, Any] = {"num_attention_heads": 16, "block_configs": blocks(256, 16)}
WIDE_KEYS: dict[str, Any] = {"attention.head_count": [4 * heads for heads in HEADS]}
KEYS: dict[str, Any] = {
    "attention__head_count": HEADS,
    "attention__head_count_kv": KV_HEADS,
    "feed_forward_length": INNER,
    "attention__key_length": 16,
    "attention__value_length": 16,
    "rope__dimension_count": 16,
    "vocab_size": 96,
}


def permuted(name: str, value: Array, config: dict[str, Any]) -> Array:
    """A layer's keys have as many heads as that layer."""
    if ".k_proj." not in name:
        return interleaved(name, value, config)
    return interleaved(name, value, {"num_key_value_heads": KV_HEADS[int(name.split(".")[2])]})


def linear_tensors(weights: dict[str, Array], config: dict[str, Any]) -> dict[str, Array]:
    """The single matrix goes by the name of attention's output projection."""
    renamed = {name.replace("self_attn.linear.", "self_attn.o_proj."): value for name, value in weights.items()}
    return by_name("deci", permuted)(renamed, config)


CASES = [
    Case(
        "deci",
        "deci",
        DECI,
        keys(DECI, **KEYS),
        by_name("deci", permuted),
        extra={"rope_freqs.weight": llama3_factors(16, 10000.0)},
        required=("block_count", "embedding_length", "context_length", "attention.head_count", "feed_forward_length"),
        wide=Wide(WIDE_CONFIG, WIDE_KEYS),
    ),
    Case(
        "deci-linear",
        "deci",
        LINEAR,
        keys(LINEAR, **KEYS | {"attention__head_count_kv": [2, 0, 0, 0, 2]}),
        linear_tensors,
        rows=(),
        wide=Wide(WIDE_CONFIG | {"block_configs": with_matrix(blocks(256, 16))}, WIDE_KEYS),
    ),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
