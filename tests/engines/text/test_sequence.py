"""Tokens to deltas, over any split of a text into tokens: whole code points, nothing of a stop, and tokens beside their text."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from engines.text.sequence import Delta, TextSequence
from engines.text.stops import StopMatcher
from engines.wire import TextDelta, TokenLogprob
from tests.engines.text.helpers_engine import ScriptDetokenizer

ALPHABET = "abé🙂中"


def split(text: str, cuts: list[int]) -> list[bytes]:
    """The text's bytes in pieces, some perhaps empty (tokens without text)."""
    data = text.encode()
    edges = sorted([0, len(data), *(cut % (len(data) + 1) for cut in cuts)])
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def deltas(pieces: list[bytes], stops: list[str], pauses: list[bool]) -> tuple[TextSequence, list[TextDelta]]:
    """What a sequence answers for tokens 0, 1, …; it is asked after each token for which there is a pause, and at the end."""
    sequence = TextSequence(1, 3, ScriptDetokenizer(pieces), stops)
    taken: list[Delta] = []
    for token, piece in enumerate(pieces):
        sequence.push(token, TokenLogprob(token, piece, -float(token)))
        if sequence.stop_sequence is not None:
            break
        if pauses[token % len(pauses)]:
            taken += sequence.take()
    else:
        sequence.end()
    taken += sequence.take()
    return sequence, [delta for delta in taken if isinstance(delta, TextDelta)]


TEXTS = st.text(ALPHABET, max_size=20)
CUTS = st.lists(st.integers(0, 99), max_size=12)
PAUSES = st.lists(st.booleans(), min_size=1, max_size=5)


@given(text=TEXTS, cuts=CUTS, stops=st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=16), pauses=PAUSES)
def test_any_split_gives_the_text_before_the_stop_and_the_tokens_it_is_made_of(
    text: str, cuts: list[int], stops: list[str], pauses: list[bool]
) -> None:
    matcher = StopMatcher(stops)
    wanted = matcher.push(text) + matcher.flush()
    pieces = split(text, cuts)
    sequence, got = deltas(pieces, stops, pauses)
    assert sequence.stop_sequence == matcher.matched
    assert "".join(delta.text for delta in got) == wanted
    covered = [token for delta in got for token in delta.tokens]
    assert covered == list(range(len(covered)))  # in order, none twice
    assert [entry for delta in got for entry in delta.logprobs] == [
        TokenLogprob(token, pieces[token], -float(token)) for token in covered
    ]
    assert all(len(delta.logprobs) == len(delta.tokens) for delta in got)
    if matcher.matched is None:
        assert len(covered) == len(pieces)
        return
    # The last token reported has some of the text, the next none of it.
    kept, so_far = len(wanted.encode()), [0, *itertools.accumulate(map(len, pieces))]
    assert so_far[len(covered)] >= kept
    assert not covered or so_far[len(covered) - 1] < kept


@given(text=TEXTS, cuts=CUTS, stops=st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3))
def test_deltas_cover_their_own_text_when_taken_at_each_token(text: str, cuts: list[int], stops: list[str]) -> None:
    """By the end of each delta its tokens hold all of the text so far, and without the last of them they would not."""
    pieces = split(text, cuts)
    _, got = deltas(pieces, stops, [True])
    sent, tokens = "", 0
    for delta in got:
        sent, tokens = sent + delta.text, tokens + len(delta.tokens)
        held = b"".join(pieces[:tokens])
        assert held.startswith(sent.encode())
        if delta.text and delta.tokens and delta is not got[-1]:
            assert len(b"".join(pieces[: tokens - 1])) < len(sent.encode())


def test_a_token_held_back_for_one_stop_is_not_reported_with_the_text_another_let_go() -> None:
    """ "xy" was held for "xyz"; the "a" that lets it go may itself begin "ab"."""
    _, got = deltas([b"xy", b"a", b"b"], ["xyz", "ab"], [True])
    assert [(delta.text, delta.tokens) for delta in got] == [("xy", (0,))]


def test_tokens_without_text_are_reported_with_the_text_behind_them_or_at_the_end() -> None:
    _, got = deltas([b"", b"a", b"", b"b", b""], [], [True])
    assert [(delta.text, delta.tokens) for delta in got] == [("a", (0, 1)), ("b", (2, 3)), ("", (4,))]


def test_a_token_in_which_a_stop_begins_is_reported_and_those_behind_it_are_not() -> None:
    sequence, got = deltas([b"one. EN", b"D", b"x"], ["END"], [True])
    assert [(delta.text, delta.tokens) for delta in got] == [("one. ", (0,))]
    assert (sequence.stop_sequence, sequence.completion_tokens) == ("END", 2)


def test_half_a_code_point_at_the_end_belongs_to_its_token() -> None:
    _, got = deltas([b"a", "🙂".encode()[:2]], [], [True])
    assert [(delta.text, delta.tokens) for delta in got] == [("a", (0,)), ("\ufffd", (1,))]
