"""llguidance over a vocabulary of single bytes and a few control tokens, which costs nothing to build."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

__all__ = ["Vocabulary"]


class _Bytes:
    """What llguidance asks of a tokenizer."""

    eos_token_id = 256
    bos_token_id = None

    def __init__(self, specials: Sequence[str]) -> None:
        self.tokens = [bytes([value]) for value in range(256)] + [b"<eos>"] + [mark.encode() for mark in specials]
        self.special_token_ids = list(range(256, len(self.tokens)))

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


class Vocabulary:
    """Bytes, an end-of-text token, and ``specials``."""

    def __init__(self, specials: Sequence[str] = ()) -> None:
        self.special = {mark: 257 + index for index, mark in enumerate(specials)}
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Bytes(specials)), slices=[])
        marks = sorted(specials, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, marks))})") if marks else None

    def tokens(self, text: str) -> list[int]:
        """The text's bytes, with the control tokens in it as such."""
        ids: list[int] = []
        for piece in self._split.split(text) if self._split else [text]:
            ids += [self.special[piece]] if piece in self.special else piece.encode()
        return ids

    def errors(self, grammar: str) -> list[str]:
        """What llguidance holds against a grammar."""
        _, messages = LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_lark(grammar), self._tokenizer)
        return list(messages)

    def accepted(self, grammar: str, text: str) -> tuple[str, bool]:
        """How much of a text a grammar lets through, token by token, and whether it may end there."""
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
        tokens = self.tokens(text)
        count = matcher.try_consume_tokens(tokens)
        assert not matcher.is_error(), matcher.get_error()
        return self._tokenizer.decode_str(tokens[:count]), matcher.is_accepting()
