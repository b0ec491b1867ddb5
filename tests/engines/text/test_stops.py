"""Stop strings over any split of the text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.text.stops import StopMatcher


def scan(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition: character by character, the first stop string to be complete; of several the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=12),
)
def test_any_split_gives_what_the_whole_text_gives(text: str, stops: list[str], cuts: list[int]) -> None:
    wanted, stop = scan(text, stops)
    matcher = StopMatcher(stops)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    sent = ""
    for start, end in itertools.pairwise(edges):
        sent += matcher.push(text[start:end])
        assert wanted.startswith(sent)  # nothing of a stop string has leaked
    sent += matcher.flush()
    assert (sent, matcher.matched) == (wanted, stop)


@given(
    text=st.text("abcd", min_size=1, max_size=30), stops=st.lists(st.text("abc", min_size=1, max_size=5), max_size=3)
)
def test_no_more_is_held_back_than_may_become_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    sent = "".join(matcher.push(character) for character in text)
    if matcher.matched is None:
        held = text[len(sent) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_stop_over_three_pieces_does_not_leak() -> None:
    matcher = StopMatcher(["own fox"])
    assert [matcher.push(piece) for piece in ("the br", "own", " fox", " jumps")] == ["the br", "", "", ""]
    assert matcher.matched == "own fox"
    assert matcher.flush() == ""


def test_without_stops_everything_passes_at_once() -> None:
    matcher = StopMatcher([])
    assert matcher.push("abc") == "abc"
    assert matcher.flush() == ""
    assert matcher.matched is None


@pytest.mark.parametrize(
    ("stops", "text", "wanted", "stop"),
    [
        (["b", "abc"], "abc", "a", "b"),  # complete first
        (["bc", "abc"], "xabc", "x", "abc"),  # complete together: the longest
        (["aab"], "aaab", "a", "aab"),
        (["\n\n"], "a\n\nb", "a", "\n\n"),
        (["é"], "café au", "caf", "é"),
    ],
)
def test_the_earliest_match_wins(stops: list[str], text: str, wanted: str, stop: str) -> None:
    matcher = StopMatcher(stops)
    assert matcher.push(text) == wanted
    assert matcher.matched == stop
