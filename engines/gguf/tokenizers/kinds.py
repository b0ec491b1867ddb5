"""The kinds of tokenizer by ``tokenizer.ggml.model``, and why a file's cannot be used. Costs nothing to import."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from engines.gguf.tokenizers.pre import pre_refusal

__all__ = ["KINDS", "refusal"]

KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gpt2": "byte-level BPE",
        "gemma4": "BPE",
        "whitespace": "BPE",
        "hybriddna": "byte-level BPE with DNA",
        "llama": "SPM",
        "bert": "WordPiece",
        "t5": "unigram",
        "rwkv": "RWKV",
        "plamo2": "PLaMo 2",
    }
)
"""``tokenizer.ggml.model`` → what people call it."""

_ABSENT = frozenset({"none", "no_vocab"})


def refusal(kind: object, pre: object) -> str | None:
    """Why a tokenizer of this ``tokenizer.ggml.model`` and ``tokenizer.ggml.pre`` cannot be used; None if it can."""
    if kind in _ABSENT:
        return (
            f"the file says that it has no tokenizer (tokenizer.ggml.model is {kind!r}), so text cannot become tokens; "
            "convert the model again together with its tokenizer"
        )
    if kind not in KINDS:
        return (
            f"the tokenizer is of the kind {kind!r} (tokenizer.ggml.model), which is not supported; "
            f"supported are {', '.join(sorted(KINDS))}"
        )
    return pre_refusal(pre if isinstance(pre, str) else None) if kind in ("gpt2", "hybriddna") else None
