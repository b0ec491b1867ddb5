"""What the simulated engine reads and says: words, one a token, with made-up log-probabilities."""

from __future__ import annotations

import math

from engines.wire import ChatPrompt, Prompt, TextDelta, TextPrompt, TokenLogprob, TokenPrompt, TopLogprob

__all__ = ["answer_word", "delta", "echo", "prompt_text", "prompt_tokens"]


def answer_word(place: int) -> str:
    """The text of an answer's token; its id is its place."""
    return f" w{place}" if place else "w0"


def prompt_text(prompt: Prompt) -> str:
    """What is echoed. Token 7 says "w7"."""
    if isinstance(prompt, ChatPrompt):
        return " ".join(message.content or "" for message in prompt.messages)
    if isinstance(prompt, TokenPrompt):
        return " ".join(f"w{token}" for token in prompt.tokens)
    return prompt.text if isinstance(prompt, TextPrompt) else f"{prompt.prefix} {prompt.suffix}"


def prompt_tokens(prompt: Prompt) -> int:
    """One a word."""
    return len(prompt.tokens) if isinstance(prompt, TokenPrompt) else len(prompt_text(prompt).split())


def delta(request_id: int, text: str, tokens: tuple[tuple[int, str], ...], alternatives: int | None) -> TextDelta:
    """A piece of the answer, with log-probabilities unless ``alternatives`` is None. Tokens are ids, each with its text."""
    entries = () if alternatives is None else tuple(_entry(token, word, alternatives) for token, word in tokens)
    return TextDelta(request_id=request_id, text=text, tokens=tuple(token for token, _ in tokens), logprobs=entries)


def echo(request_id: int, prompt: Prompt, alternatives: int | None) -> TextDelta:
    """The prompt as the beginning of the answer; the first of its tokens has no log-probability."""
    text = prompt_text(prompt)
    words = text.split()
    tokens = prompt.tokens if isinstance(prompt, TokenPrompt) else tuple(range(len(words)))
    entries: tuple[TokenLogprob, ...] = ()
    if alternatives is not None and tokens:
        first = TokenLogprob(tokens[0], words[0].encode(), None)
        rest = zip(tokens[1:], words[1:], strict=True)
        entries = (first, *(_entry(token, f" {word}", alternatives) for token, word in rest))
    return TextDelta(request_id=request_id, text=text, logprobs=entries)


def _entry(token: int, word: str, alternatives: int) -> TokenLogprob:
    """Half of the probability is the token's own, half of the rest that of the id behind it, and so on."""
    others = (
        TopLogprob(id, answer_word(id).encode(), _logprob(id - token)) for id in range(token + 1, token + alternatives)
    )
    own = TopLogprob(token, word.encode(), _logprob(0))
    return TokenLogprob(token, own.raw, own.logprob, (own, *others) if alternatives else ())


def _logprob(place: int) -> float:
    return -math.log(2) * (place + 1)
