"""A conversation that is too long, without its oldest part.

1. Whole turns go first, the oldest first: a user's message and all that followed it, so that what is left begins with a user's
   message as templates want it.
2. Of the last turn, which stays, the oldest calls go together with their results, but for the last ones.

System messages stay. How much goes is reckoned from how much too long the prompt is; whoever asks tries again, and may be told
once more that it is too long.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engines.wire import ChatMessage, ChatPrompt, TextRequest
from gateway.errors import ContextExceeded
from gateway.protocols.options import characters_in

__all__ = ["shortened"]

_LEAST_SHARE = 0.1  # dropped at a time where nothing is known


def shortened(request: TextRequest, error: ContextExceeded) -> TextRequest | None:
    """The request with less before its end; None where nothing may be left out, or the prompt is no chat."""
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        return None
    messages = _without_oldest(prompt.messages, _surplus(prompt.messages, error))
    if messages is None:
        return None
    return msgspec.structs.replace(request, prompt=msgspec.structs.replace(prompt, messages=messages))


def _surplus(messages: Sequence[ChatMessage], error: ContextExceeded) -> float:
    """About how many characters are too many."""
    characters = sum(map(_characters, messages))
    if not error.tokens or error.most_tokens is None:
        return characters * _LEAST_SHARE
    return characters * max(0, error.tokens - error.most_tokens) / error.tokens


def _without_oldest(messages: Sequence[ChatMessage], surplus: float) -> tuple[ChatMessage, ...] | None:
    """At least one piece less, as long as more than ``surplus`` characters are left to drop."""
    places = [i for i, message in enumerate(messages) if message.role != "system"]
    turns = _parted(messages, places, "user")
    pieces = turns[:-1]
    if turns:
        # 2.
        steps = [step for step in _parted(messages, turns[-1], "assistant") if messages[step[0]].role == "assistant"]
        pieces += [step for step in steps[:-1] if "tool_calls" in messages[step[0]].extra]
    dropped: set[int] = set()
    for piece in pieces:
        if dropped and surplus <= 0:
            break
        dropped.update(piece)
        surplus -= sum(_characters(messages[i]) for i in piece)
    if not dropped:
        return None
    return tuple(message for i, message in enumerate(messages) if i not in dropped)


def _parted(messages: Sequence[ChatMessage], places: Sequence[int], role: str) -> list[list[int]]:
    """These places in runs, of which each but the first begins with a message of this role."""
    runs: list[list[int]] = []
    for i in places:
        if not runs or messages[i].role == role:
            runs.append([])
        runs[-1].append(i)
    return runs


def _characters(message: ChatMessage) -> int:
    return len(message.content or "") + characters_in(message.extra) + 1
