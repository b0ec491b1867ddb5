"""Byte-pair encoding by merges (``tokenizer.ggml.model`` "gpt2", "gemma4" and "whitespace").

Text is cut into words (:mod:`.pre`), whose bytes are written as 256 printable characters and joined by the merges; both is done
by the `tokenizers` library. Some vocabularies are plain text instead, with SentencePiece's ``▁`` for a space and a token for
each byte that has no text. Source: the GPT-2 encoder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from engines.errors import CheckpointError
from engines.gguf.tokenizers.pre import PreRule, pre_rule
from engines.gguf.tokenizers.rebuilt import rebuilt_merges
from engines.gguf.tokenizers.vocabulary import PREFIX, SPACE, TokenType, Vocabulary, encoded_texts, metadata_flag

__all__ = ["BytePairModel", "byte_characters"]

_UNRANKED = frozenset({"kimi-k2"})  # published as tiktoken's ranks, which are ids; files may leave the merges out
_LINE_BREAKS = re.compile("(\n+)")
_LINE_START = re.compile(rf"(?<![^\n])(?=[^\n{SPACE}])")


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
        """UnsupportedModel for an unknown pre-tokenizer, CheckpointError for merges that are missing or no pairs."""
        kind = metadata.get(PREFIX + "model")
        name = kind if kind in ("gemma4", "whitespace") else metadata.get(PREFIX + "pre")
        rule = pre_rule(name)
        self.add_bos = rule.add_bos
        self.always_bos = rule.always_bos
        self._vocabulary = vocabulary
        self._rule = rule
        self._lowers = rule.spaces_are_cuts and metadata_flag(metadata, PREFIX + "normalizer.lowercase") is True
        # Only normal tokens are for merges to make: a control token spelled out in text stays text.
        ids = vocabulary.normal_ids()
        merges = _merges(metadata, vocabulary, ids, by_id=name in _UNRANKED)
        # Line breaks that are one token are not left to the merges, which may not have them.
        self._breaks = (
            {text: id for text, id in ids.items() if text and not text.strip("\n")} if rule.whole_breaks else {}
        )
        if rule.plain:
            ids |= vocabulary.of_type(TokenType.BYTE)
        self._encode = _library(rule, ids, merges).encode

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of ``text``. Bytes that the vocabulary has no token for are left out, as in the reference."""
        del at_start  # only SentencePiece puts a space before the first word
        if self._rule.plain:
            return self._encode_plain(text)
        ids: list[int] = self._encode(text, add_special_tokens=False).ids
        return ids

    def token_bytes(self, id: int) -> bytes:
        """What the token adds to the output."""
        if self._rule.plain:
            return self._vocabulary.plain_bytes(id)
        kind = self._vocabulary.types[id]
        if kind != TokenType.NORMAL:
            return self._vocabulary.plain_bytes(id)
        try:
            return bytes([_BYTE_OF[character] for character in self._vocabulary.texts[id]])
        except KeyError:  # a token that is not written in byte characters stands for itself
            return self._vocabulary.texts.encoded(id)

    def _encode_plain(self, text: str) -> list[int]:
        if self._lowers:
            text = text.lower()
        if not self._rule.spaces_are_cuts:
            text = text.replace(" ", SPACE)
        if self._rule.begins_lines:
            text = _LINE_START.sub(SPACE, text)
        ids: list[int] = []
        for part in _LINE_BREAKS.split(text) if self._breaks else (text,):
            if (id := self._breaks.get(part)) is not None:
                ids.append(id)
            elif part:
                ids += self._encode(part, add_special_tokens=False).ids
        return ids


def _library(rule: PreRule, ids: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    tokenizer = Tokenizer(BPE(ids, merges, ignore_merges=rule.ignore_merges, byte_fallback=rule.plain))
    # Each pattern's matches and what is between them are words of their own: "isolated".
    cuts: list[Any] = [Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    if rule.spaces_are_cuts:
        cuts.append(Split(Regex(r"\s+"), "removed"))
    if not rule.plain:
        cuts.append(ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = Sequence(cuts)
    return tokenizer


def _merges(
    metadata: Mapping[str, Any], vocabulary: Vocabulary, ids: Mapping[str, int], *, by_id: bool
) -> list[tuple[str, str]]:
    """Pairs of tokens by rank. Pairs that make no token are left out: converters leave such behind when they cut a vocabulary
    down."""
    key = PREFIX + "merges"
    if key not in metadata:
        scores = vocabulary.scores
        if scores is not None and len(set(scores)) > 1:
            return rebuilt_merges(ids, scores)
        if by_id:
            return rebuilt_merges(ids, None)
    merges: list[tuple[str, str]] = []
    for encoded in encoded_texts(metadata, key):
        left, space, right = encoded.decode("utf-8", "surrogatepass").partition(" ")
        if not space:
            raise CheckpointError(f"tokenizer.ggml.merges has {left!r}, which is not two tokens")
        if left in ids and right in ids and left + right in ids:
            merges.append((left, right))
    return merges
