"""What a text worker says of its scheduling: how many rows are where, what they cost, and what memory leaves room for."""

from __future__ import annotations

from typing import Literal

import msgspec

from engines.scheduling.histogram import Histogram
from engines.wire.message import Message

__all__ = ["Band", "CapacityReport", "CapacityRow", "PriorityCounts", "SchedulingReport"]

Band = Literal["green", "yellow", "orange", "red"]


class CapacityRow(msgspec.Struct, frozen=True, array_like=True):
    """So many rows may grow to so many tokens each, prompt and answer together, within the KV grant."""

    rows: int
    tokens: int


class PriorityCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by the priority of their requests."""

    interactive: int = 0
    normal: int = 0
    batch: int = 0


class SchedulingReport(Message, frozen=True):
    """Sent once a second while something runs, and once when the engine falls idle.

    Attributes:
        width: rows that may decode together at most.
        decoding: rows that decode now.
        prefilling: rows whose prompt is being read.
        waiting: rows that have not begun, or were preempted; ``by_priority`` has the same ones by class.
        deferred: those of them that wait for memory, not for a place.
        ratio: seconds of decoding for each second of prefill beside it.
        chunk_tokens: the most that the next prefill chunk may have.
        chunk_cost_s: what a prefill chunk took lately, measured when its results were there; 0 before the first.
        step_cost_s: the same of a decode step, of all rows together.
        band: how near memory is to its end.
        headroom_bytes: what the grant has left; None where nothing bounds it.
        growth_bytes_s: how fast caches grow.
        prefill_tokens_s: prompt tokens read a second of prefilling, lately.
        decode_tokens_s: tokens drawn a second of decoding, lately, of all rows together.
        frontier_tokens: the length of the deepest row now, 0 without rows.
        bytes_per_row_token: of KV, measured; 0 until something was.
        preemptions, sheds, failures_by_memory: since the worker began; a failure is a row that memory ended.
        cohorts: batches that decode now, one for rows of like length.
        inter_token, queue_wait, ttft: times since the worker began. A wait ends when prefill begins; a first token counts from
            the request's arrival in the worker.
    """

    width: int
    decoding: int = 0
    prefilling: int = 0
    waiting: int = 0
    deferred: int = 0
    by_priority: PriorityCounts = PriorityCounts()
    ratio: float = 0.0
    chunk_tokens: int = 0
    chunk_cost_s: float = 0.0
    step_cost_s: float = 0.0
    band: Band = "green"
    headroom_bytes: int | None = None
    growth_bytes_s: float = 0.0
    prefill_tokens_s: float = 0.0
    decode_tokens_s: float = 0.0
    frontier_tokens: int = 0
    bytes_per_row_token: float = 0.0
    preemptions: int = 0
    sheds: int = 0
    cohorts: int = 0
    failures_by_memory: int = 0
    inter_token: Histogram = Histogram()
    queue_wait: Histogram = Histogram()
    ttft: Histogram = Histogram()


class CapacityReport(Message, frozen=True):
    """The grant has changed, and with it what fits: as ``Ready.capacity``, and the width that comes of it."""

    capacity: tuple[CapacityRow, ...]
    width: int
