"""BERT's WordPiece (``tokenizer.ggml.model`` "bert"), by the `tokenizers` library.

In GGUF a piece that begins a word starts with ``▁``, and one that goes on has no ``##``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

from engines.errors import CheckpointError
from engines.gguf.tokenizers.vocabulary import PREFIX, SPACE, TokenType, Vocabulary, metadata_flag

__all__ = ["WordPieceModel", "word_piece_library"]

_LONGEST_WORD = 100  # characters; a longer one is unknown, as BERT has it
_OFF_TEXT = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)


def word_piece_library(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> Tokenizer:
    """The library's tokenizer; its vocabulary has the control tokens too. CheckpointError if there is no unknown token."""
    if vocabulary.unknown_id is None:
        raise CheckpointError("tokenizer.ggml.unknown_token_id is missing")
    pieces: dict[str, int] = {}
    special: set[str] = set()
    for id, text in enumerate(vocabulary.texts):
        if vocabulary.types[id] in _OFF_TEXT or _is_bracketed(text):
            pieces.setdefault(text, id)
            special.add(text)
        elif text.startswith(SPACE):
            pieces.setdefault(text[len(SPACE) :], id)
        else:
            pieces.setdefault("##" + text, id)
    unknown = vocabulary.texts[vocabulary.unknown_id]
    tokenizer = Tokenizer(WordPiece(pieces, unk_token=unknown, max_input_chars_per_word=_LONGEST_WORD))
    lower = metadata_flag(metadata, PREFIX + "normalizer.lowercase")
    if lower is None:  # files do not say: a vocabulary for lower-case text has no capitals
        lower = not any("A" <= text[:1] <= "Z" for text in pieces if text not in special)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _is_bracketed(text: str) -> bool:
    return text.startswith("[") and text.endswith("]") and len(text) > 2


class WordPieceModel:
    """Turns text without special tokens into ids, and ids into bytes. Threads may share it. What it reads loses its spacing,
    and capitals and accents where the vocabulary has none: decoding gives the words back, not the text."""

    add_space_prefix = True  # each word begins with a space, and that of the first is no text
    add_bos = True
    always_bos = False

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        """CheckpointError if there is no unknown token."""
        self._vocabulary = vocabulary
        self._encode = word_piece_library(metadata, vocabulary).encode
        self._control = frozenset(vocabulary.of_type(TokenType.CONTROL).values())

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of ``text``: a word that no pieces make is the unknown token, and so is one that is a control token's name."""
        del at_start
        unknown = self._vocabulary.unknown_id
        ids: list[int] = self._encode(text, add_special_tokens=False).ids
        return [unknown if unknown is not None and id in self._control else id for id in ids]

    def token_bytes(self, id: int) -> bytes:
        """What the token adds to the output."""
        return self._vocabulary.plain_bytes(id)
