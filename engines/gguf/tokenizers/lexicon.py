"""Every token that occurs anywhere in a text, found for all places at once."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engines.gguf.tokenizers.texts import TokenTexts

__all__ = ["MOST_CHARACTERS", "Lexicon", "Matches"]

MOST_CHARACTERS: Final = 1024
"""Of a token that is looked for: time and memory grow with the longest. Real ones have 128 at most."""

_TOGETHER: Final = 1 << 15  # tokens whose hashes are made at a time
_PENDING: Final = 1 << 18  # hashes that are kept until their ids are looked up together
_WORD: Final = (1 << 64) - 1
_TOKEN, _LONGER = 1, 2  # in the filter: a token has this hash, the beginning of a longer one has it


class Matches(NamedTuple):
    """Stretches of a text that are tokens, by ascending length and then place. One entry a stretch in each array."""

    starts: NDArray[np.int32]
    lengths: NDArray[np.int32]
    ids: NDArray[np.int32]


class Lexicon:
    """The texts of a vocabulary, for looking up all stretches of a text together.

    A text's hash is the sum of its characters' numbers, each times a power of an odd one, in 64 bits; both are drawn anew for
    each lexicon, so no text can be made to collide. A stretch that is no token is taken for one of n with a chance of about
    n / 2 ** 64. Of stretches that begin at a place only those are looked at whose beginnings begin some token, which
    two bits of a filter say by the hash's upper bits. Eighteen to 24 bytes a token. Threads may share it.

    ``left_out`` are the ids of tokens longer than MOST_CHARACTERS, which are not found.
    """

    def __init__(self, texts: TokenTexts, hidden: Collection[int] = ()) -> None:
        """Of several tokens with one text the last is found, and none if that one is ``hidden``."""
        self._seed = secrets.randbits(64)
        self._factor = secrets.randbits(64) | 1
        bits = max(4, (len(texts) - 1).bit_length())
        self._slot_shift = np.uint64(64 - (bits + 3))
        self._bucket_shift = np.uint64(64 - bits)
        hashes = np.zeros(len(texts), np.uint64)
        slots = np.zeros(1 << (bits + 3), np.uint8)
        self._longest = 0
        self.left_out: list[int] = []
        for first in range(0, len(texts), _TOGETHER):
            last = min(first + _TOGETHER, len(texts))
            points, starts = texts.characters(first, last)
            self.left_out += (first + np.flatnonzero(np.diff(starts) > MOST_CHARACTERS)).tolist()
            hashes[first:last] = self._hashed(points, starts, slots)
        self._filter = slots[0::4] | slots[1::4] << 2 | slots[2::4] << 4 | slots[3::4] << 6

        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        last_of_text = np.append(ordered[1:] != ordered[:-1], True)[: len(order)]
        shown = np.ones(len(texts), np.bool_)
        shown[list(hidden)] = False
        shown[hashes == 0] = False  # without text, or too long
        kept = last_of_text & shown[order]
        # In ascending order of hashes, of which a bucket has one on average; the last one is never asked for.
        self._hashes = np.append(ordered[kept], np.uint64(_WORD))
        self._ids = np.append(order[kept], -1).astype(np.int32)
        sizes = np.bincount(_index(ordered[kept], self._bucket_shift), minlength=1 << bits)
        self._buckets = np.concatenate(([0], np.cumsum(sizes[:-1]))).astype(np.int32)

    def matches(self, points: NDArray[np.uint32]) -> Matches:
        """Of the text with these code points."""
        numbers = self._numbers(points)
        places, hashes, power, length = np.arange(len(points)), numbers, 1, 1
        found = _Found(self._ids_of)
        while True:
            slots = _index(hashes, self._slot_shift)
            marks = self._filter.take(slots >> 2) >> (slots << 1 & 6).astype(np.uint8)
            tokens = np.flatnonzero(marks & _TOKEN)
            found.add(places.take(tokens).astype(np.int32), hashes.take(tokens), length)
            longer = np.flatnonzero(marks & _LONGER)
            places = places.take(longer)
            if len(places) and places[-1] + length >= len(points):  # only the last of them can be at the text's end
                places, longer = places[:-1], longer[:-1]
            if length >= self._longest or not len(places):
                break
            power = power * self._factor & _WORD
            hashes = hashes.take(longer) + numbers.take(places + length) * np.uint64(power)
            length += 1
        return found.matches()

    def _ids_of(self, hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
        """-1 where no token has the hash."""
        at = self._buckets.take(_index(hashes, self._bucket_shift))
        before = np.flatnonzero(self._hashes.take(at) < hashes)
        while len(before):
            at[before] += 1
            before = before[self._hashes.take(at.take(before)) < hashes.take(before)]
        return np.where(self._hashes.take(at) == hashes, self._ids.take(at), np.int32(-1))

    def _hashed(
        self, points: NDArray[np.uint32], starts: NDArray[np.int64], slots: NDArray[np.uint8]
    ) -> NDArray[np.uint64]:
        """The hash of each text, 0 of one that is empty or too long; ``starts[i]`` to ``starts[i + 1]`` are its characters. Marks
        ``slots``."""
        numbers = self._numbers(points)
        lengths = np.diff(starts)
        lengths[lengths > MOST_CHARACTERS] = 0
        order = np.argsort(-lengths, kind="stable")  # those with another character are always the first
        begins, descending = starts[:-1][order], -lengths[order]
        sums = np.zeros(len(lengths), np.uint64)
        power = 1
        longest = int(-descending[0])
        for length in range(1, longest + 1):
            count = int(np.searchsorted(descending, -length, side="right"))
            sums[:count] += numbers[begins[:count] + (length - 1)] * np.uint64(power)
            longer = int(np.searchsorted(descending, -length - 1, side="right"))
            reached = _index(sums[:count], self._slot_shift)
            slots[reached[:longer]] |= _LONGER
            slots[reached[longer:]] |= _TOKEN
            power = power * self._factor & _WORD
        self._longest = max(self._longest, longest)
        hashes = np.empty_like(sums)
        hashes[order] = sums
        return hashes

    def _numbers(self, points: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """A number for each character that says nothing about its neighbours in the alphabet."""
        numbers = (points.astype(np.uint64) + np.uint64(1)) * np.uint64(self._factor) ^ np.uint64(self._seed)
        numbers ^= numbers >> np.uint64(32)
        numbers *= np.uint64(0xD6E8FEB86659FD93)  # a multiplier of many mixed bits, of splitmix's kind
        numbers ^= numbers >> np.uint64(29)
        return numbers


class _Found:
    """What a text's matches are put together from: hashes of many are not kept, of few they are looked up together."""

    def __init__(self, ids_of: Callable[[NDArray[np.uint64]], NDArray[np.int32]]) -> None:
        self._ids_of = ids_of
        self._starts: list[NDArray[np.int32]] = []
        self._lengths: list[NDArray[np.int32]] = []
        self._ids: list[NDArray[np.int32]] = []
        self._pending: list[tuple[NDArray[np.int32], NDArray[np.uint64], int]] = []
        self._size = 0

    def add(self, starts: NDArray[np.int32], hashes: NDArray[np.uint64], length: int) -> None:
        """Stretches of one length, longer than those before."""
        self._pending.append((starts, hashes, length))
        self._size += len(starts)
        if self._size > _PENDING:
            self._look_up()

    def matches(self) -> Matches:
        """Once, when all have been added."""
        self._look_up()
        return Matches(_joined(self._starts), _joined(self._lengths), _joined(self._ids))

    def _look_up(self) -> None:
        pending, self._pending, self._size = self._pending, [], 0
        lengths = np.repeat(np.array([each[2] for each in pending], np.int32), [len(each[0]) for each in pending])
        ids = self._ids_of(np.concatenate([each[1] for each in pending])) if pending else np.zeros(0, np.int32)
        real = np.flatnonzero(ids >= 0)
        starts = np.concatenate([each[0] for each in pending]) if pending else ids
        self._starts.append(starts[real])
        self._lengths.append(lengths[real])
        self._ids.append(ids[real])


def _joined(parts: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    """Of parts that are let go."""
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    parts.clear()
    return whole


def _index(hashes: NDArray[np.uint64], shift: np.uint64) -> NDArray[np.int64]:
    """The upper bits."""
    return (hashes >> shift).view(np.int64)
