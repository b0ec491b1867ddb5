"""Which tokens a piece of an answer's text is made of."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engines.wire import TokenLogprob

__all__ = ["TokenCover"]


@dataclass(frozen=True, slots=True)
class _Covered:
    """A token that is not handed on yet. ``start`` to ``end``: its characters of the text; a code point counts to the token
    that completes it."""

    start: int
    end: int
    token: int
    logprob: TokenLogprob | None


class TokenCover:
    """Tokens come in with the text they add; the text goes out in parts, each with the tokens that begin in it.

    A token that begins in a mark and goes on in what follows belongs to that. Of content, which may be held back for a possible
    stop, tokens go out as its characters do.
    """

    def __init__(self) -> None:
        self._waiting: deque[_Covered] = deque()  # of text that no part accounts for yet
        self._added = 0  # characters
        self._accounted = 0  # characters, by parts
        self._content: deque[_Covered] = deque()  # by their places in the content
        self._content_end = 0
        self._in_content = True  # the last part was

    def add(self, token: int, characters: int, logprob: TokenLogprob | None) -> None:
        """The next token, and how many characters of text it adds."""
        end = self._added + characters
        self._waiting.append(_Covered(self._added, end, token, logprob))
        self._added = end

    def part(self, characters: int) -> tuple[int, ...]:
        """The next part of the text, which is no content: its tokens."""
        self._accounted += characters
        self._in_content = False
        tokens: list[int] = []
        while characters and self._waiting and self._waiting[0].start < self._accounted:
            tokens.append(self._waiting.popleft().token)
        return tuple(tokens)

    def mark(self, characters: int) -> None:
        """The next part of the text, which nobody is told of."""
        self._accounted += characters
        self._in_content = False
        while self._waiting and self._waiting[0].start < self._accounted and self._waiting[0].end <= self._accounted:
            self._waiting.popleft()

    def content(self, characters: int) -> None:
        """The next part of the text, which is content."""
        begin = self._accounted
        self._accounted += characters
        self._in_content = True
        while characters and self._waiting and self._waiting[0].start < self._accounted:
            each = self._waiting.popleft()
            start = self._content_end + max(0, each.start - begin)
            self._content.append(_Covered(start, start, each.token, each.logprob))
        self._content_end += characters

    def released(self, characters: int, *, ended: bool) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
        """The tokens of the first ``characters`` of the content that are not handed on yet, and their log-probabilities.

        A text that has ended leaves no token behind.
        """
        if ended and self._in_content:
            self._take_rest()
        taken: list[_Covered] = []
        while self._content and (ended or self._content[0].start < characters):
            taken.append(self._content.popleft())
        return (
            tuple(each.token for each in taken),
            tuple(each.logprob for each in taken if each.logprob is not None),
        )

    def _take_rest(self) -> None:
        """Tokens without characters at the text's end are content's."""
        while self._waiting:
            each = self._waiting.popleft()
            self._content.append(_Covered(self._content_end, self._content_end, each.token, each.logprob))
