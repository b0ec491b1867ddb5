"""Byte-level BPE with DNA in it (``tokenizer.ggml.model`` "hybriddna").

Between ``<dna>`` and ``</dna>`` six bases are a token each, the last padded with A's; what is no such token is ``<oov>``. Files
mark these tokens' texts with U+E000 at their end, which keeps them apart from prose. Source: llama.cpp's convention.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engines.gguf.tokenizers.bpe import BytePairModel
from engines.gguf.tokenizers.vocabulary import TokenType, Vocabulary

__all__ = ["DnaModel"]

_MARK = "\ue000"
_BASES = 6
_STRETCH = re.compile("(<dna>)(.*?)(</dna>|$)", re.DOTALL)


class DnaModel(BytePairModel):
    """Turns text without special tokens into ids, and ids into bytes. Threads may share it."""

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        """As :class:`BytePairModel`."""
        super().__init__(metadata, vocabulary)
        self._ids = {text: id for text, id in vocabulary.normal_ids().items() if text.endswith(_MARK)}
        self._tags = {tag: vocabulary.texts.find(tag) for tag in ("<dna>", "</dna>", "<oov>")}

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of ``text``. An end without a beginning is text, and a beginning without an end reaches to the text's end."""
        begin, end, unknown = self._tags.values()
        if begin is None or end is None or unknown is None:
            return super().encode(text, at_start=at_start)
        ids: list[int] = []
        place = 0
        for stretch in _STRETCH.finditer(text):
            ids += super().encode(text[place : stretch.start()], at_start=at_start)
            bases = stretch[2].upper()
            words = (bases[start : start + _BASES].ljust(_BASES, "A") for start in range(0, len(bases), _BASES))
            ids += [begin, *(self._ids.get(word + _MARK, unknown) for word in words)]
            if stretch[3]:
                ids.append(end)
            place = stretch.end()
        return ids + super().encode(text[place:], at_start=at_start)

    def token_bytes(self, id: int) -> bytes:
        """What the token adds to the output: of DNA its bases, without the mark."""
        if self._vocabulary.types[id] == TokenType.NORMAL and (text := self._vocabulary.texts[id]).endswith(_MARK):
            return text.removesuffix(_MARK).encode()
        return super().token_bytes(id)
