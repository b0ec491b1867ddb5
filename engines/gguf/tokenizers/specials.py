"""Finds special tokens in text: at each place the longest one that begins there, from left to right."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

__all__ = ["SpecialSplitter"]


class SpecialSplitter:
    """Cuts a text at its special tokens. Immutable after construction, so any thread may use it.

    Gemma has 6400 of them, most alike: a regular expression of all would be slow to build and to run. One of their first
    two characters finds candidates, and a dictionary decides.
    """

    def __init__(self, tokens: Mapping[str, int], strips_right: Collection[int] = ()) -> None:
        """``tokens``: text → id, no text empty. Whitespace after an id of ``strips_right`` belongs to it."""
        self._ids = dict(tokens)
        self._strips_right = frozenset(strips_right)
        lengths: dict[str, set[int]] = defaultdict(set)
        for text in self._ids:
            lengths[text[:2]].add(len(text))
        for prefix in lengths:
            if prefix[0] in self._ids:
                lengths[prefix].add(1)
        self._lengths = {prefix: sorted(found, reverse=True) for prefix, found in lengths.items()}
        prefixes = sorted(self._lengths, key=len, reverse=True)
        self._candidate = re.compile("|".join(map(re.escape, prefixes))) if prefixes else None

    def split(self, text: str) -> Iterator[str | int]:
        """Ids and the texts between them, in order; no text is empty."""
        start = position = 0
        while self._candidate is not None and (candidate := self._candidate.search(text, position)):
            at = candidate.start()
            token = self._longest(text, at, candidate.group())
            if token is None:
                position = at + 1
                continue
            if start < at:
                yield text[start:at]
            id = self._ids[token]
            yield id
            start = at + len(token)
            if id in self._strips_right:
                while start < len(text) and text[start].isspace():
                    start += 1
            position = start
        if start < len(text):
            yield text[start:]

    def starts(self, text: str) -> Iterator[int]:
        """Every place in ``text`` where a token begins, also inside of another."""
        position = 0
        while self._candidate is not None and (candidate := self._candidate.search(text, position)):
            if self._longest(text, candidate.start(), candidate.group()) is not None:
                yield candidate.start()
            position = candidate.start() + 1

    def _longest(self, text: str, at: int, prefix: str) -> str | None:
        for length in self._lengths[prefix]:
            token = text[at : at + length]
            if token in self._ids:
                return token
        return None
