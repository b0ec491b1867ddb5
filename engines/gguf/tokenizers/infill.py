"""The tokens by which a model is asked to fill the gap between two texts.

Source: Bavarian et al., 2022, "Efficient Training of Language Models to Fill in the Middle"; the metadata keys, old and new,
and the tokens' texts in the field's models are llama.cpp's conventions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engines.gguf.tokenizers.texts import TokenTexts
from engines.gguf.tokenizers.vocabulary import PREFIX

__all__ = ["InfillIds", "infill_ids"]

# Metadata keys below tokenizer.ggml., the newer first; then the texts that models in the field have for these tokens.
_ROLES: tuple[tuple[tuple[str, str], tuple[str, ...]], ...] = (
    (
        ("fim_pre_token_id", "prefix_token_id"),
        (
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ),
    ),
    (
        ("fim_suf_token_id", "suffix_token_id"),
        (
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ),
    ),
    (
        ("fim_mid_token_id", "middle_token_id"),
        (
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ),
    ),
)


@dataclass(frozen=True)
class InfillIds:
    """Before the text that comes first, before the text behind the gap, and before what fills it."""

    prefix: int
    suffix: int
    middle: int


def infill_ids(metadata: Mapping[str, Any], texts: TokenTexts) -> InfillIds | None:
    """The ids that the file names, else those that texts tell; None where one of the three is missing."""
    found = [_named(metadata, keys, len(texts)) for keys, _ in _ROLES]
    found = [_spelled(texts, known) if id is None else id for id, (_, known) in zip(found, _ROLES, strict=True)]
    prefix, suffix, middle = found
    if prefix is None or suffix is None or middle is None or len({prefix, suffix, middle}) < 3:
        return None
    return InfillIds(prefix, suffix, middle)


def _named(metadata: Mapping[str, Any], keys: Iterable[str], vocabulary: int) -> int | None:
    ids = (metadata.get(PREFIX + key) for key in keys)
    return next((id for id in ids if isinstance(id, int) and 0 <= id < vocabulary), None)


def _spelled(texts: TokenTexts, known: Iterable[str]) -> int | None:
    return next((id for text in known if (id := texts.find(text)) is not None), None)
