"""Log-probabilities in both of OpenAI's shapes, over any split of a text into tokens."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.wire import TokenLogprob, TopLogprob
from gateway.protocols.openai_logprobs import CompletionLogprobs, chat_logprobs, mean_logprob

TEXTS = st.text("aé中🦊 ", max_size=12)


def split(text: str, cuts: list[int]) -> list[TokenLogprob]:
    """The text's bytes as tokens, cut anywhere."""
    raw = text.encode()
    ends = sorted({cut % (len(raw) + 1) for cut in cuts} | {0, len(raw)})
    return [TokenLogprob(1, raw[a:b], -1.0) for a, b in itertools.pairwise(ends)]


@given(TEXTS, st.lists(st.integers(0, 50), max_size=8))
def test_chat_bytes_are_the_text_in_any_split(text: str, cuts: list[int]) -> None:
    content = chat_logprobs(split(text, cuts))["content"]
    assert bytes(byte for token in content for byte in token["bytes"]).decode() == text


@given(TEXTS, st.lists(st.integers(0, 50), max_size=8), st.integers(0, 8))
def test_offsets_are_characters_in_any_split_and_pieces(text: str, cuts: list[int], piece: int) -> None:
    tokens = split(text, cuts)
    choice = CompletionLogprobs()
    offsets = choice.of(tokens[:piece])["text_offset"] + choice.of(tokens[piece:])["text_offset"]
    begins = [sum(len(token.raw) for token in tokens[:i]) for i in range(len(tokens))]
    assert offsets == [len(text.encode()[:begin].decode(errors="ignore")) for begin in begins]


@pytest.mark.parametrize("logprob", [-math.inf, -1e30, math.nan])
def test_what_json_cannot_hold_is_very_unlikely(logprob: float) -> None:
    token = TokenLogprob(1, b"a", logprob, (TopLogprob(2, b"b", logprob),))
    (entry,) = chat_logprobs([token])["content"]
    assert (entry["logprob"], entry["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)
    legacy = CompletionLogprobs().of([token])
    assert (legacy["token_logprobs"], legacy["top_logprobs"]) == ([-9999.0], [{"a": -9999.0, "b": -9999.0}])


def test_of_alternatives_that_look_alike_the_more_probable_counts() -> None:
    token = TokenLogprob(1, b"a", -3.0, (TopLogprob(2, b"b", -1.0), TopLogprob(3, b"b", -2.0)))
    assert CompletionLogprobs().of([token])["top_logprobs"] == [{"b": -1.0, "a": -3.0}]


def test_mean_of_no_token_is_the_least() -> None:
    assert mean_logprob([]) == -9999.0
    assert mean_logprob([TokenLogprob(1, b"a", -1.0), TokenLogprob(1, b"a", -2.0)]) == -1.5
