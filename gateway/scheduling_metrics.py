"""What workers report of scheduling, as metrics: of models that are loaded, and of no others.

============================================= ========= ===========================================================
metric                                        kind      labels beside model, and what it says
============================================= ========= ===========================================================
``innkeeper_queue_limit``                     gauge     callers that may wait at a time
``innkeeper_capacity_tokens``                 gauge     rows: the deepest context of so many rows within the grant
``innkeeper_decode_width``                    gauge     rows decoded together at most
``innkeeper_rows``                            gauge     state (decoding, prefilling, waiting, deferred); deferred
                                                        rows wait for memory and are some of the waiting
``innkeeper_rows_waiting``                    gauge     priority
``innkeeper_cohorts``                         gauge     batches that decode, one for rows of like length
``innkeeper_frontier_tokens``                 gauge     length of the deepest row
``innkeeper_prefill_ratio``                   gauge     seconds of decoding for each of prefill beside it
``innkeeper_prefill_chunk_tokens``            gauge     the most that the next chunk may have
``innkeeper_prefill_chunk_seconds``           gauge     what a chunk took lately
``innkeeper_decode_step_seconds``             gauge     what a decode step took lately
``innkeeper_tokens_per_second``               gauge     kind (prefill, decode)
``innkeeper_memory_band``                     gauge     band: 1 for that which memory is in
``innkeeper_kv_headroom_bytes``               gauge     what the grant has left
``innkeeper_kv_growth_bytes_per_second``      gauge     how fast caches grow
``innkeeper_kv_bytes_per_row_token``          gauge     measured
``innkeeper_preemptions_total``               counter   rows that gave their memory back and began again
``innkeeper_sheds_total``                     counter   times caches were shed
``innkeeper_memory_failures_total``           counter   rows that memory ended
``innkeeper_worker_queue_wait_seconds``       histogram from a request's arrival in the worker to its prefill
``innkeeper_worker_first_token_seconds``      histogram from a request's arrival in the worker to its first token
``innkeeper_worker_inter_token_seconds``      histogram between the tokens of a row
============================================= ========= ===========================================================

Counters and histograms count from the worker's start; one that is gone takes its numbers along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from engines.scheduling.histogram import BOUNDS_S, Histogram
from engines.wire import Band, Priority, SchedulingReport

__all__ = ["scheduling_families"]

_GAUGES = (
    ("innkeeper_cohorts", "Batches that decode.", "cohorts"),
    ("innkeeper_frontier_tokens", "Length of the deepest row.", "frontier_tokens"),
    ("innkeeper_prefill_ratio", "Seconds of decoding for each second of prefill beside it.", "ratio"),
    ("innkeeper_prefill_chunk_tokens", "The most that the next prefill chunk may have.", "chunk_tokens"),
    ("innkeeper_prefill_chunk_seconds", "What a prefill chunk took lately.", "chunk_cost_s"),
    ("innkeeper_decode_step_seconds", "What a decode step took lately.", "step_cost_s"),
    ("innkeeper_kv_headroom_bytes", "Bytes that the KV grant has left.", "headroom_bytes"),
    ("innkeeper_kv_growth_bytes_per_second", "How fast caches grow.", "growth_bytes_s"),
    ("innkeeper_kv_bytes_per_row_token", "Bytes of KV that a token of a row takes, measured.", "bytes_per_row_token"),
)
_COUNTERS = (
    ("innkeeper_preemptions", "Rows that gave their memory back and began again.", "preemptions"),
    ("innkeeper_sheds", "Times that caches were shed.", "sheds"),
    ("innkeeper_memory_failures", "Rows that memory ended.", "failures_by_memory"),
)
_HISTOGRAMS = (
    ("innkeeper_worker_queue_wait_seconds", "From a request's arrival in the worker to its prefill.", "queue_wait"),
    ("innkeeper_worker_first_token_seconds", "From a request's arrival in the worker to its first token.", "ttft"),
    ("innkeeper_worker_inter_token_seconds", "Between the tokens of a row.", "inter_token"),
)
_STATES = ("decoding", "prefilling", "waiting", "deferred")

Samples = Iterable[tuple[Sequence[str], float | None]]


def scheduling_families(residents: Iterable[Any]) -> Iterator[Metric]:
    """All of them; ``residents`` are :class:`~gateway.residency.scheduling.ResidentScheduling`."""
    residents = tuple(residents)
    reports = [(resident.model, resident.report) for resident in residents if resident.report is not None]
    yield _gauge("innkeeper_queue_limit", "Callers that may wait.", (), _of(residents, lambda it: it.queue_limit))
    yield _gauge(
        "innkeeper_capacity_tokens",
        "The deepest context of so many rows within the KV grant.",
        ("rows",),
        (
            ((resident.model, str(depth.rows)), depth.tokens)
            for resident in residents
            for depth in resident.capacity.depths
        ),
    )
    width = _of(residents, lambda it: it.width)
    yield _gauge("innkeeper_decode_width", "Rows decoded together at most.", (), width)
    yield _labelled("innkeeper_rows", "Rows by what becomes of them.", "state", reports, _rows)
    yield _labelled("innkeeper_rows_waiting", "Rows that wait, by priority.", "priority", reports, _waiting)
    yield _labelled("innkeeper_memory_band", "How near memory is to its end.", "band", reports, _band)
    yield _labelled("innkeeper_tokens_per_second", "Tokens a second of work, lately.", "kind", reports, _rates)
    for name, what, field in _GAUGES:
        yield _gauge(name, what, (), (((model,), getattr(report, field)) for model, report in reports))
    for name, what, field in _COUNTERS:
        counter = CounterMetricFamily(name, what, labels=["model"])
        for model, report in reports:
            counter.add_metric([model], getattr(report, field))
        yield counter
    for name, what, field in _HISTOGRAMS:
        family = HistogramMetricFamily(name, what, labels=["model"])
        for model, report in reports:
            _add_histogram(family, model, getattr(report, field))
        yield family


def _of(residents: Iterable[Any], value: Callable[[Any], float | None]) -> Samples:
    return (((resident.model,), value(resident.capacity)) for resident in residents)


def _gauge(name: str, what: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, what, labels=["model", *labels])
    for names, value in samples:
        if value is not None:
            family.add_metric(names, value)
    return family


def _labelled(
    name: str,
    what: str,
    label: str,
    reports: Iterable[tuple[str, SchedulingReport]],
    values: Callable[[SchedulingReport], dict[str, float]],
) -> Metric:
    """One sample for each key of ``values``."""
    samples = (((model, key), value) for model, report in reports for key, value in values(report).items())
    return _gauge(name, what, (label,), samples)


def _rows(report: SchedulingReport) -> dict[str, float]:
    return {state: getattr(report, state) for state in _STATES}


def _waiting(report: SchedulingReport) -> dict[str, float]:
    return {priority: getattr(report.by_priority, priority) for priority in get_args(Priority)}


def _band(report: SchedulingReport) -> dict[str, float]:
    return {band: float(band == report.band) for band in get_args(Band)}


def _rates(report: SchedulingReport) -> dict[str, float]:
    return {"prefill": report.prefill_tokens_s, "decode": report.decode_tokens_s}


def _add_histogram(family: HistogramMetricFamily, model: str, histogram: Histogram) -> None:
    buckets = [*zip(map(str, BOUNDS_S), histogram.counts, strict=True), ("+Inf", histogram.count)]
    family.add_metric([model], buckets, histogram.sum_s)
