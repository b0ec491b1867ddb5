"""Byte-level byte-pair encoding (``tokenizer.ggml.model`` "gpt2"), through the `tokenizers` library.

Text is cut into words (:mod:`.pre`), each word's UTF-8 bytes are written as 256 printable characters, and the merges
join those. Source: the GPT-2 encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from engines.errors import CheckpointError
from engines.gguf.tokenizers.pre import pre_rule
from engines.gguf.tokenizers.vocabulary import PREFIX, TokenType, Vocabulary, metadata_list

__all__ = ["BytePairModel", "byte_characters"]


def byte_characters() -> dict[int, str]:
    """Byte → the character that writes it: itself where Latin-1 prints it, else the next free one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (byte for byte in range(256) if byte not in printable)
    written = {byte: chr(0x100 + place) for place, byte in enumerate(hidden)}
    return written | {byte: chr(byte) for byte in printable}


_BYTE_OF = {character: byte for byte, character in byte_characters().items()}


class BytePairModel:
    """Turns text without special tokens into ids, and ids into bytes. Threads may share it."""

    add_space_prefix = False

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        """UnsupportedModel for an unknown pre-tokenizer, CheckpointError for merges that are no pairs."""
        rule = pre_rule(metadata.get(PREFIX + "pre"))
        self.add_bos = rule.add_bos
        self._vocabulary = vocabulary
        ids = {text: id for id, text in enumerate(vocabulary.texts)}
        # Only normal tokens are for merges to make. The library wants an entry for every id all the same, so the others get
        # a name that no text can have: a space is never in byte characters.
        for id in vocabulary.abnormal:
            text = vocabulary.texts[id]
            if ids.get(text) == id:
                del ids[text]
            ids[f" {id}"] = id
        merges = []
        for merge in metadata_list(metadata, PREFIX + "merges", str):
            left, space, right = merge.partition(" ")
            if not space:
                raise CheckpointError(f"tokenizer.ggml.merges has {merge!r}, which is not two tokens")
            if left in ids and right in ids and left + right in ids:
                merges.append((left, right))
        self._engine = Tokenizer(BPE(vocab=ids, merges=merges, ignore_merges=rule.ignore_merges))
        # Each pattern's matches and what is between them are words of their own: "isolated".
        cuts: list[Any] = [Split(Regex(pattern), "isolated") for pattern in rule.patterns]
        self._engine.pre_tokenizer = Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of ``text``. Bytes that the vocabulary has no token for are left out, as in the reference."""
        del at_start  # only SentencePiece puts a space before the first word
        ids: list[int] = self._engine.encode(text, add_special_tokens=False).ids
        return ids

    def token_bytes(self, id: int) -> bytes:
        """What the token adds to the output."""
        text = self._vocabulary.texts[id]
        kind = self._vocabulary.types[id]
        if kind == TokenType.UNUSED:
            return b""
        if kind != TokenType.NORMAL:
            return self._vocabulary.texts.encoded(id)
        try:
            return bytes([_BYTE_OF[character] for character in text])
        except KeyError:  # a token that is not written in byte characters stands for itself
            return self._vocabulary.texts.encoded(id)
