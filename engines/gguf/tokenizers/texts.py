"""The texts of a vocabulary, side by side in one block of bytes."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["TokenTexts", "code_points"]


class TokenTexts:
    """Text by id, some twelve bytes a token: a list of strings takes five times that. Immutable; threads may share it.

    A text is made anew each time it is asked for.
    """

    __slots__ = ("_packed", "_starts")

    def __init__(self, texts: Iterable[bytes]) -> None:
        """``texts`` are UTF-8, read once from front to back."""
        listed = list(texts)
        self._packed = b"".join(listed)
        self._starts = array("I", accumulate(map(len, listed), initial=0))  # starts[id] to starts[id + 1] are its bytes

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, id: int) -> str:
        """IndexError outside of the vocabulary; ids are not counted from its end."""
        return self.encoded(id).decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return (text.decode("utf-8", "surrogatepass") for text in self.all_encoded())

    def encoded(self, id: int) -> bytes:
        """The text in UTF-8. IndexError as above."""
        if id < 0:
            raise IndexError(f"token {id} is outside of the vocabulary")
        return self._packed[self._starts[id] : self._starts[id + 1]]

    def all_encoded(self) -> Iterator[bytes]:
        """Every text in UTF-8, by ascending id."""
        packed = self._packed
        return (packed[start:end] for start, end in pairwise(self._starts))

    def characters(self, first: int, last: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The code points of the texts from id ``first`` to before ``last``, one behind the other, and where among them each
        text begins; the end of the last one follows."""
        begin, end = self._starts[first], self._starts[last]
        data = self._packed[begin:end]
        points = code_points(data.decode("utf-8", "surrogatepass"))
        leads = np.frombuffer(data, np.uint8) & 0xC0 != 0x80  # the first byte of each character
        counts = np.concatenate(([0], np.cumsum(leads)))
        return points, counts[np.frombuffer(self._starts, np.uint32)[first : last + 1].astype(np.int64) - begin]

    def find(self, text: str) -> int | None:
        """The first id whose text this is; None if there is none. Reads the whole vocabulary."""
        wanted = text.encode("utf-8", "surrogatepass")
        at = self._packed.find(wanted)
        while at >= 0:
            id = bisect_right(self._starts, at) - 1
            if self.encoded(id) == wanted:
                return id
            at = self._packed.find(wanted, at + 1)
        return None

    def having(self, piece: str) -> list[int]:
        """Ids of the tokens with ``piece``, not empty, anywhere but at their very start; ascending."""
        wanted = piece.encode()
        packed = np.frombuffer(self._packed, np.uint8)
        starts = np.frombuffer(self._starts, np.uint32)
        matches = np.ones(max(0, len(packed) - len(wanted) + 1), np.bool_)
        for place, byte in enumerate(wanted):
            matches &= packed[place : place + len(matches)] == byte
        places = np.flatnonzero(matches)
        ids = np.searchsorted(starts, places, side="right") - 1
        inside = (places > starts[ids]) & (places + len(wanted) <= starts[ids + 1])
        found: list[int] = np.unique(ids[inside]).tolist()
        return found


def code_points(text: str) -> NDArray[np.uint32]:
    """One entry a character, lone surrogates too."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
