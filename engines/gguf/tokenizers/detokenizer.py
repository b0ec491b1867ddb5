"""Tokens to text as they come: only whole code points leave."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Container

__all__ = ["StreamingDetokenizer"]

_Utf8Decoder = getincrementaldecoder("utf-8")


class StreamingDetokenizer:
    """The text of one answer. One row owns it; it is not shared.

    Bytes of a code point that is not whole yet are held back. Bytes that can be no UTF-8 become U+FFFD. What ``add`` and
    ``finish`` return, joined, is what decoding all tokens at once returns.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], skipped: Container[int], *, strip_space: bool) -> None:
        """``skipped``: ids that add no text. ``strip_space``: the first space of all is the tokenizer's own, not text."""
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._strip_space = strip_space
        self._decoder = _Utf8Decoder("replace")

    def add(self, token: int) -> str:
        """The code points that ``token`` completes; often none, if it is a part of one."""
        if token in self._skipped:
            return ""
        data = self._token_bytes(token)
        if self._strip_space and data:
            data = data.removeprefix(b" ")
            self._strip_space = False
        return self._decoder.decode(data)

    def finish(self) -> str:
        """The rest: U+FFFD if a code point was begun and not ended, else nothing."""
        return self._decoder.decode(b"", final=True)
