"""Merges of a byte-pair vocabulary whose file lists none.

Source: how SentencePiece's and tiktoken's vocabularies become merges: a token is joined of any two tokens that make it, and
tokens made early (a high score, or a low id, which is tiktoken's rank) are joined first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["rebuilt_merges"]


def rebuilt_merges(ids: Mapping[str, int], scores: Sequence[float] | None) -> list[tuple[str, str]]:
    """Pairs of tokens in the order in which they are joined: by score of what they make where there are scores, else by its id.

    ``ids``: text → id. Linear in the vocabulary's characters but for the sort.
    """
    found: list[tuple[float, int, str, str]] = []
    for text, id in ids.items():
        rank = id if scores is None else -scores[id]
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                found.append((rank, ids[left], left, right))
    found.sort(key=lambda pair: pair[:2])
    return [(left, right) for _, _, left, right in found]
