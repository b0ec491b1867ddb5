"""What workers report as metrics: names, labels, cumulative buckets; and nothing of models that are gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from engines.scheduling.histogram import BOUNDS_S
from gateway.metrics import Metrics
from gateway.residency_metrics import ResidencyMetrics
from tests.gateway.helpers_scheduling import report, resident


def samples_of(*residents: Any) -> dict[tuple[str, tuple[str, ...]], float]:
    """The text format as a scraper reads it: name and the values of the labels → value."""
    snapshot = SimpleNamespace(budget=None, models=[], workers=[], scheduling=residents)
    metrics = Metrics()
    metrics.add(ResidencyMetrics(lambda: snapshot))
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.name, tuple(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
    }


def test_each_number_of_a_report_is_a_metric_of_its_model() -> None:
    seen = samples_of(resident("org/a", report()))
    expected: dict[tuple[str, tuple[str, ...]], float] = {
        ("innkeeper_queue_limit", ("org/a",)): 16,
        ("innkeeper_decode_width", ("org/a",)): 4,
        ("innkeeper_capacity_tokens", ("org/a", "1")): 8192,
        ("innkeeper_capacity_tokens", ("org/a", "32")): 0,
        ("innkeeper_rows", ("org/a", "decoding")): 3,
        ("innkeeper_rows", ("org/a", "prefilling")): 1,
        ("innkeeper_rows", ("org/a", "waiting")): 6,
        ("innkeeper_rows", ("org/a", "deferred")): 2,
        ("innkeeper_rows_waiting", ("org/a", "interactive")): 1,
        ("innkeeper_rows_waiting", ("org/a", "batch")): 3,
        ("innkeeper_cohorts", ("org/a",)): 2,
        ("innkeeper_frontier_tokens", ("org/a",)): 4000,
        ("innkeeper_prefill_ratio", ("org/a",)): 4.5,
        ("innkeeper_prefill_chunk_tokens", ("org/a",)): 512,
        ("innkeeper_prefill_chunk_seconds", ("org/a",)): 0.7,
        ("innkeeper_decode_step_seconds", ("org/a",)): 0.05,
        ("innkeeper_memory_band", ("green", "org/a")): 0,
        ("innkeeper_memory_band", ("yellow", "org/a")): 1,
        ("innkeeper_kv_headroom_bytes", ("org/a",)): 10_000,
        ("innkeeper_kv_growth_bytes_per_second", ("org/a",)): 2000,
        ("innkeeper_kv_bytes_per_row_token", ("org/a",)): 23040.5,
        ("innkeeper_preemptions_total", ("org/a",)): 7,
        ("innkeeper_sheds_total", ("org/a",)): 8,
        ("innkeeper_memory_failures_total", ("org/a",)): 9,
        ("innkeeper_tokens_per_second", ("decode", "org/a")): 60,
        ("innkeeper_tokens_per_second", ("org/a", "prefill")): 730,
    }
    by_sorted = {(name, tuple(sorted(labels))): value for (name, labels), value in seen.items()}
    for (name, labels), value in expected.items():
        assert by_sorted[name, tuple(sorted(labels))] == value, name


def test_histograms_count_cumulatively_up_to_infinity() -> None:
    seen = samples_of(resident("a", report()))
    for name, within in (("queue_wait", 3.0), ("first_token", 700.0), ("inter_token", 0.02)):
        metric = f"innkeeper_worker_{name}_seconds"
        counts = [seen[f"{metric}_bucket", (str(bound), "a")] for bound in BOUNDS_S]
        assert counts == [2 if bound >= within else 1 for bound in BOUNDS_S], name
        assert seen[f"{metric}_bucket", ("+Inf", "a")] == seen[f"{metric}_count", ("a",)] == 2
        assert seen[f"{metric}_sum", ("a",)] == within + 0.0005


def test_a_model_without_a_report_yet_has_its_capacity_and_one_that_is_gone_nothing() -> None:
    scheduled = {name for name, _ in samples_of(resident("a", report()))} - {name for name, _ in samples_of()}
    assert len(scheduled) == 19 + 3 * 3
    without = {name for name, labels in samples_of(resident("b")) if "b" in labels}
    assert without == {"innkeeper_queue_limit", "innkeeper_capacity_tokens", "innkeeper_decode_width"}
    assert not any("a" in labels for _, labels in samples_of(resident("b")))


def test_a_headroom_that_nothing_bounds_is_left_out() -> None:
    seen = samples_of(resident("a", report(headroom_bytes=None)), resident("b", report()))
    assert [labels for name, labels in seen if name == "innkeeper_kv_headroom_bytes"] == [("b",)]
