"""SentencePiece's merges in rounds against one best pair at a time."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.gguf.tokenizers import merging
from engines.gguf.tokenizers.lexicon import Lexicon
from engines.gguf.tokenizers.merging import merged
from engines.gguf.tokenizers.texts import TokenTexts, code_points

NEVER = 1 << 60


def plainly_merged(text: str, costs: Mapping[str, float]) -> list[str]:
    """By the rule as it is defined: the cheapest pair, the leftmost of equals, until there is none."""
    pieces = list(text)
    while True:
        joined = [
            (costs[left + right], at) for at, (left, right) in enumerate(pairwise(pieces)) if left + right in costs
        ]
        if not joined:
            return pieces
        _, at = min(joined)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


class Vocabulary:
    """Texts with costs, single characters among them or not."""

    def __init__(self, costs: Mapping[str, float]) -> None:
        self._texts = list(costs)
        self.costs = np.array([np.inf, *costs.values()], np.float32)
        self.lexicon = Lexicon(TokenTexts(text.encode() for text in costs))

    def merged(self, text: str) -> list[str]:
        """The pieces; their ids are looked up as well."""
        points = code_points(text)
        starts, ids = merged(len(points), self.lexicon.matches(points), self.costs)
        pieces = [text[start:end] for start, end in pairwise([*starts.tolist(), len(text)])]
        for piece, id in zip(pieces, ids.tolist(), strict=True):
            assert self._texts[id] == piece if id >= 0 else piece not in self._texts
        return pieces


@pytest.fixture(params=["rounds", "one by one", "rounds, then one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds for as long as one settles anything, no rounds at all, and both: texts here are too short for what is used."""
    few, least = {"rounds": (0, NEVER), "one by one": (NEVER, 1), "rounds, then one by one": (8, 8)}[request.param]
    monkeypatch.setattr(merging, "_FEW", few)
    monkeypatch.setattr(merging, "_LEAST", least)


def test_merged_takes_the_cheapest_and_the_leftmost_of_equals(way: None) -> None:
    vocabulary = Vocabulary({"a": 9.0, "aa": 2.0, "aab": 1.0, "bc": 0.5})
    assert vocabulary.merged("aaabc") == ["aa", "a", "bc"]
    assert vocabulary.merged("aaab") == ["aa", "a", "b"]
    assert vocabulary.merged("aab") == ["aab"]
    assert vocabulary.merged("aaaaaz") == ["aa", "aa", "a", "z"]
    assert vocabulary.merged("z") == ["z"]
    assert vocabulary.merged("") == []


@pytest.mark.parametrize(
    ("costs", "text", "pieces"),
    [
        # "cd" is cheaper than its neighbours, but "abc" takes its c away first.
        ({"ab": 1.0, "abc": 2.0, "cd": 3.0, "bc": 9.0}, "abcd", ["abc", "d"]),
        # The same from the right.
        ({"cd": 1.0, "bcd": 2.0, "ab": 3.0, "bc": 9.0}, "abcd", ["a", "bcd"]),
        # "bc" is joined in the end, and then "abc" at once; but "xa" comes before both.
        ({"xa": 2.0, "bc": 5.0, "abc": 1.0, "wx": 1.5}, "xabc", ["xa", "bc"]),
        ({"xa": 2.0, "bc": 5.0, "abc": 1.0, "wx": 1.5}, "wxabc", ["wx", "abc"]),
        # A row of equal prices, of which the second pair is taken from by what the first makes.
        ({"aa": 3.0, "aaa": 1.0}, "aaaaa", ["aaa", "aa"]),
    ],
)
def test_merged_keeps_the_order_where_it_matters(
    way: None, costs: dict[str, float], text: str, pieces: list[str]
) -> None:
    assert plainly_merged(text, costs) == pieces
    assert Vocabulary(costs).merged(text) == pieces
    assert Vocabulary(costs).merged(f"z{text}" * 40) == ["z", *pieces] * 40


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.text(alphabet="abc", max_size=90),
    st.dictionaries(st.text(alphabet="abc", min_size=1, max_size=5), st.integers(0, 5), min_size=1),
)
def test_merged_is_one_best_pair_at_a_time_with_ties(text: str, costs: dict[str, int]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(merging, "_FEW", 0)
        assert Vocabulary(costs).merged(text) == plainly_merged(text, costs)


@pytest.mark.parametrize("seed", range(8))
def test_merged_is_one_best_pair_at_a_time_in_any_vocabulary(way: None, seed: int) -> None:
    """Prices at random, so that tokens are often cheaper than their parts, as no trained vocabulary has them."""
    generator = random.Random(seed)
    for _ in range(12):
        alphabet = generator.choice(["a", "ab", "abc", "abcde"])
        longest, count = generator.choice([3, 5, 9]), generator.choice([5, 20, 80, 300])
        tokens = {"".join(generator.choices(alphabet, k=generator.randint(1, longest))) for _ in range(count)}
        most = generator.choice([3, 1000])
        costs = {token: float(generator.randint(0, most)) for token in sorted(tokens)}
        vocabulary = Vocabulary(costs)
        text = "".join(generator.choices(alphabet, k=generator.choice([20, 150])))
        for each in (text, text[:7] * 20):
            assert vocabulary.merged(each) == plainly_merged(each, costs)


@pytest.mark.parametrize("unit", ["a", "ab", "abc", "abca"])
def test_merged_joins_long_repetitions_in_rounds(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time remains what is not worth a round."""
    left: list[int] = []
    one_by_one = merging._one_by_one

    def watched(board: merging._Board, places: merging._Places, prices: merging._Prices) -> merging._Places:
        left.append(int(np.count_nonzero(np.isfinite(prices))))
        return one_by_one(board, places, prices)

    monkeypatch.setattr(merging, "_one_by_one", watched)
    costs = {(unit * 8)[start : start + length]: float(length) for start in range(4) for length in (1, 2, 4, 8)}
    text = unit * 2000
    assert "".join(Vocabulary(costs).merged(text)) == text
    assert sum(left) <= merging._FEW


def test_memory_of_a_text_of_which_every_stretch_is_a_token_is_bounded() -> None:
    longest, count = 16, 1 << 16
    vocabulary = Vocabulary({"a" * length: -length for length in range(1, longest + 1)})
    points = code_points("a" * count)
    tracemalloc.start()
    try:
        starts, _ = merged(count, vocabulary.lexicon.matches(points), vocabulary.costs)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(starts) == count // longest
    assert peak < (120 + 4 * longest + 16 * longest) * count
