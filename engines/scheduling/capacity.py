"""How many rows of which length a KV grant holds: what bounds the rows that decode together, and those that queue for them."""

from __future__ import annotations

from typing import NamedTuple

from engines.scheduling.admission import KvAdmission, KvCost

__all__ = ["CAPACITY_ROWS", "WORTHWHILE_TOKENS", "Depth", "decode_width", "depths", "queue_cap"]

CAPACITY_ROWS = (1, 2, 4, 8, 16, 32)
WORTHWHILE_TOKENS = 2048  # a row narrower than this is not worth a place in the batch
_LEAST_QUEUE = 16  # requests


class Depth(NamedTuple):
    """So many rows may grow to so many tokens each, prompt and answer together; 0: not even to one step of the caches."""

    rows: int
    tokens: int


def depths(cost: KvCost, grant_bytes: int | None, context: int) -> tuple[Depth, ...]:
    """For each of CAPACITY_ROWS the deepest context that the grant holds, at most the model's own."""
    admission = KvAdmission(cost, grant_bytes)
    return tuple(Depth(rows, _deepest(admission, rows, context)) for rows in CAPACITY_ROWS)


def decode_width(cost: KvCost, grant_bytes: int | None, context: int, most: int) -> int:
    """The most rows, between 1 and ``most``, of which each may grow to min(context, WORTHWHILE_TOKENS) tokens."""
    admission = KvAdmission(cost, grant_bytes)
    wanted = min(context, WORTHWHILE_TOKENS)
    width = 1
    while width < most and admission.fits([wanted] * (width + 1)):
        width += 1
    return width


def queue_cap(width: int) -> int:
    """Requests that may wait for a model of this width, where the operator says nothing."""
    return max(_LEAST_QUEUE, 2 * width)


def _deepest(admission: KvAdmission, rows: int, context: int) -> int:
    """Within tokens, by halves: what a batch takes rises with its length."""
    low, high = 0, context
    while low < high:
        middle = (low + high + 1) // 2
        if admission.fits([middle] * rows):
            low = middle
        else:
            high = middle - 1
    return low
