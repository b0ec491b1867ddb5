"""The buckets of times."""

from __future__ import annotations

from engines.scheduling.histogram import BOUNDS_S, Histogram, Recorder


def test_bounds_rise() -> None:
    assert list(BOUNDS_S) == sorted(set(BOUNDS_S))


def test_recorder_counts_each_time_in_every_bucket_that_is_wide_enough() -> None:
    recorder = Recorder()
    assert recorder.read() == Histogram()
    for seconds in (0.001, 0.0011, 0.3, 9999.0):
        recorder.add(seconds)
    read = recorder.read()
    at = dict(zip(BOUNDS_S, read.counts, strict=True))
    assert (at[0.001], at[0.0025], at[0.25], at[0.4], at[600.0], read.count) == (1, 2, 2, 3, 3, 4)
    assert read.sum_s == 0.001 + 0.0011 + 0.3 + 9999.0


def test_recorder_a_negative_time_counts_as_none() -> None:
    recorder = Recorder()
    recorder.add(-1.0)
    assert (recorder.read().counts[0], recorder.read().sum_s) == (1, 0.0)
