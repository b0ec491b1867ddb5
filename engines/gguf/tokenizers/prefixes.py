"""How long the tokens are that may begin at a place of a text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

__all__ = ["prefix_lengths"]


def prefix_lengths(texts: Iterable[str]) -> Callable[[str, int], tuple[int, ...]]:
    """What says, for a text and a place in it, the lengths of those of ``texts`` that have its next two characters (or are its
    next one), the longest first. Lengths are in characters, and may reach beyond the text's end."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for text in texts:
        if text:
            found[text[:2]].add(len(text))
    for prefix, lengths in found.items():
        if prefix[0] in found:
            lengths.add(1)
    shared: dict[tuple[int, ...], tuple[int, ...]] = {}
    table: dict[str, tuple[int, ...]] = {}
    for prefix, lengths in found.items():
        ordered = tuple(sorted(lengths, reverse=True))
        table[prefix] = shared.setdefault(ordered, ordered)  # there are few of them

    def lengths_at(text: str, place: int) -> tuple[int, ...]:
        return table.get(text[place : place + 2]) or table.get(text[place], ())

    return lengths_at
