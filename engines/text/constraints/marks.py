"""The marks around thinking as a decoding row meets them: token by token.

A mark may be one control token or spelled out in several ordinary ones, and a token may hold a mark's end and more. A grammar
begins right behind the closing mark, so while one is waiting, tokens that would go beyond the mark are kept from being drawn.
"""

from __future__ import annotations

import threading
from collections import defaultdict

from engines.text.constraints.bits import Bits, bits_of
from engines.text.constraints.vocabulary import GrammarVocabulary
from engines.text.reasoning import ReasoningFormat

__all__ = ["ThinkingMarks"]


class ThinkingMarks:
    """One model's marks and the tokens that matter to them. Threads may share it.

    Args:
        vocabulary: of the model.
        reasoning: how the model marks its thinking.
    """

    def __init__(self, vocabulary: GrammarVocabulary, reasoning: ReasoningFormat) -> None:
        self.opens = tuple(mark.encode() for mark in reasoning.opens)
        self.closes = tuple(mark.encode() for mark in reasoning.closes)
        self.anywhere = reasoning.anywhere
        tokenizer = vocabulary.tokenizer
        self.closing = tuple(tokenizer.encode(reasoning.closes[0], add_bos=False, parse_special=True, at_start=False))
        """The tokens of the first closing mark."""
        self.newlines = {} if reasoning.channels else vocabulary.newlines
        """Line breaks, which models write behind a closing mark."""
        self._vocabulary = vocabulary
        joined = " ".join(reasoning.marks).encode()
        self._silent = {id for id in tokenizer.special_ids if tokenizer.token_bytes(id) not in joined}
        self._lock = threading.Lock()
        self._begin: dict[bytes, Bits] | None = None
        self._beyond: dict[tuple[bytes, int], set[int]] = {}
        self._beyond_bits: dict[tuple[tuple[bytes, int], ...], Bits] = {}

    def text(self, token: int) -> bytes:
        """What of the token can belong to a mark: nothing of a control token that is in none."""
        return b"" if token in self._silent else self._vocabulary.tokenizer.token_bytes(token)

    def prepare(self) -> None:
        """Reads the vocabulary, once; on a thread that has the time for it."""
        with self._lock:
            if self._begin is None:
                self._begin = self._read()

    def begin(self, text: bytes) -> Bits:
        """The tokens that go on with an opening mark of which ``text`` is there, no further than its end."""
        assert self._begin is not None, "prepare() comes first"
        return self._begin[text]

    def beyond(self, text: bytes) -> Bits:
        """The tokens that would complete a closing mark, some of which may be at the end of ``text``, and go beyond it."""
        pending = tuple(
            (mark, length) for mark in self.closes for length in range(len(mark)) if text.endswith(mark[:length])
        )
        bits = self._beyond_bits.get(pending)
        if bits is None:
            ids = set[int]().union(*(self._beyond[each] for each in pending))
            bits = self._beyond_bits[pending] = bits_of(ids, self._vocabulary.size)
        return bits

    def _read(self) -> dict[bytes, Bits]:
        begin = defaultdict[bytes, set[int]](set)
        beyond = defaultdict[tuple[bytes, int], set[int]](set)
        for id, token in enumerate(self._vocabulary.tokens()):
            if not token or id in self._silent:
                continue
            for mark in self.opens:
                if token in mark:
                    for at in range(len(mark)):
                        if mark.startswith(token, at):
                            begin[mark[:at]].add(id)
            for mark in self.closes:
                if mark[-1] not in token[:-1]:
                    continue
                if mark in token[:-1]:
                    beyond[mark, 0].add(id)
                for length in range(1, len(mark)):
                    if token.startswith(mark[length:]) and len(token) > len(mark) - length:
                        beyond[mark, length].add(id)
        self._beyond = beyond
        prefixes = {mark[:at] for mark in self.opens for at in range(len(mark))}
        return {prefix: bits_of(begin[prefix], self._vocabulary.size) for prefix in prefixes}
