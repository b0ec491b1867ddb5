"""Log-probabilities in OpenAI's two shapes: chat's list of tokens, and the older format's parallel lists.

A token need not be whole code points. Its bytes stand beside it in chat; as a string, what is not UTF-8 in it is written
``\\xf0\\x9f``, in the older format after a prefix ``bytes:``, as OpenAI's servers have it. JSON has no infinity: what is
less probable than -9999 is shown as that, which is OpenAI's number for "very unlikely".

Source of the shapes: OpenAI's API reference, "The chat completion object" and "The completion object (Legacy)".
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from engines.wire import TokenLogprob

__all__ = ["CompletionLogprobs", "chat_logprobs", "mean_logprob"]

_LEAST = -9999.0


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """``logprobs`` of a chat's choice, or of the delta that carries these tokens."""
    content = [
        {
            "token": _text(token.raw),
            "logprob": _finite(token.logprob),
            "bytes": [*token.raw],
            "top_logprobs": [
                {"token": _text(top.raw), "logprob": _finite(top.logprob), "bytes": [*top.raw]} for top in token.top
            ],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """``logprobs`` of one choice of the older format, piece by piece: ``text_offset`` counts on over the pieces.

    Offsets are in characters of the choice's text. A token that goes on with a character has that character's.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def of(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The four lists for these tokens, the next of the choice."""
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(token.raw))
        return {
            "tokens": [_legacy_text(token.raw) for token in tokens],
            "token_logprobs": [None if token.logprob is None else _finite(token.logprob) for token in tokens],
            "top_logprobs": [_alternatives(token) for token in tokens],
            "text_offset": offsets,
        }


def mean_logprob(tokens: Sequence[TokenLogprob]) -> float:
    """The mean over these tokens, by which the best of several completions is chosen; the least there is without any."""
    return sum(_finite(token.logprob) for token in tokens) / len(tokens) if tokens else _LEAST


def _alternatives(token: TokenLogprob) -> dict[str, float] | None:
    """The most probable tokens and, if it is none of them, this one. Tokens that look alike: the more probable counts."""
    if token.logprob is None:
        return None
    alternatives: dict[str, float] = {}
    for top in token.top:
        alternatives.setdefault(_legacy_text(top.raw), _finite(top.logprob))
    alternatives.setdefault(_legacy_text(token.raw), _finite(token.logprob))
    return alternatives


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _legacy_text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return f"bytes:{_text(raw)}"


def _finite(logprob: float | None) -> float:
    # None is for a token that nothing came before; NaN compares as false.
    return logprob if logprob is not None and logprob > _LEAST else _LEAST
