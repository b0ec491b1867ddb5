"""RWKV's World tokenizer (``tokenizer.ggml.model`` "rwkv"): the longest token at each place, from left to right, on bytes.

Tokens are any bytes. Files write them with backslashes: ``\\t``, ``\\n``, ``\\r``, ``\\xab``, and a backslash before any other
character for that character. Source: RWKV's reference tokenizer and llama.cpp's convention for its files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engines.gguf.tokenizers.index import token_finder
from engines.gguf.tokenizers.prefixes import prefix_lengths
from engines.gguf.tokenizers.texts import TokenTexts
from engines.gguf.tokenizers.vocabulary import TokenType, Vocabulary

__all__ = ["WorldModel"]

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class WorldModel:
    """Turns text without special tokens into ids, and ids into bytes. Threads may share it.

    Bytes are kept as text of one character a byte (Latin-1), which is what the index has for keys.
    """

    add_space_prefix = False
    add_bos = False
    always_bos = False

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        del metadata  # nothing in it but the tokens says how text is cut
        self._vocabulary = vocabulary
        self._texts = TokenTexts(_as_text(_unescaped(text)).encode() for text in vocabulary.texts.all_encoded())
        self._find = token_finder(self._texts, hidden=vocabulary.abnormal)
        hidden = frozenset(vocabulary.abnormal)
        self._lengths = prefix_lengths(text for id, text in enumerate(self._texts) if id not in hidden)

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of ``text``. A byte that no token begins with is the unknown token, or left out where there is none."""
        del at_start
        data = _as_text(text.encode())
        unknown = self._vocabulary.unknown_id
        find, lengths = self._find, self._lengths
        ids: list[int] = []
        place, end = 0, len(data)
        while place < end:
            for length in lengths(data, place):
                id = find(data[place : place + length]) if place + length <= end else None
                if id is not None:
                    ids.append(id)
                    place += length
                    break
            else:
                if unknown is not None:
                    ids.append(unknown)
                place += 1
        return ids

    def token_bytes(self, id: int) -> bytes:
        """What the token adds to the output."""
        if self._vocabulary.types[id] != TokenType.NORMAL:
            return self._vocabulary.plain_bytes(id)
        return self._texts[id].encode("latin-1")


def _unescaped(text: bytes) -> bytes:
    def byte(found: re.Match[bytes]) -> bytes:
        return bytes((int(found[1], 16),)) if found[1] else _ESCAPED.get(found[2], found[2])

    return _ESCAPE.sub(byte, text)


def _as_text(data: bytes) -> str:
    return data.decode("latin-1")
