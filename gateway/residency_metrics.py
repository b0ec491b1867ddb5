"""The residency's numbers as metrics, read from its snapshot whenever they are asked for.

===================================== ======= ===============================================================
metric                                kind    labels, and what it says
===================================== ======= ===============================================================
``innkeeper_budget_bytes``            gauge   kind (total, charged, available, overhead)
``innkeeper_model_state``             gauge   model, state: 1 for the state each model is in
``innkeeper_model_charged_bytes``     gauge   model
``innkeeper_leases``                  gauge   model: leases that are out
``innkeeper_waiting``                 gauge   model: requests that wait for a lease
``innkeeper_loads_total``             counter model
``innkeeper_evictions_total``         counter model
``innkeeper_worker_info``             gauge   pid, model, kernels: 1 for each worker process; a spare has no model
``innkeeper_worker_rss_bytes``        gauge   pid, model
``innkeeper_worker_device_bytes``     gauge   pid, model
``innkeeper_worker_load_seconds``     gauge   pid, model: how long its model took to load
===================================== ======= ===============================================================

Those of scheduling follow (``scheduling_metrics.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.scheduling_metrics import scheduling_families

__all__ = ["ResidencyMetrics"]

_MODEL_GAUGES = (
    ("innkeeper_model_charged_bytes", "Bytes charged for the model.", "charged_bytes"),
    ("innkeeper_leases", "Leases that are out.", "leases"),
    ("innkeeper_waiting", "Requests that wait for a lease.", "waiting"),
)
_MODEL_COUNTERS = (
    ("innkeeper_loads", "Times the model was loaded.", "loads"),
    ("innkeeper_evictions", "Times the model was evicted.", "evictions"),
)
_WORKER_GAUGES = (
    ("innkeeper_worker_rss_bytes", "Resident memory of the worker process.", "rss_bytes"),
    ("innkeeper_worker_device_bytes", "Device memory that the worker measured last.", "device_bytes"),
    ("innkeeper_worker_load_seconds", "Seconds that the worker's model took to load.", "load_s"),
)


class ResidencyMetrics(Collector):
    """``snapshot`` answers the residency's statistics. A number that is not known is left out."""

    def __init__(self, snapshot: Callable[[], Any]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not take a snapshot before there is one."""
        return ()

    def collect(self) -> Iterable[Metric]:
        snapshot = self._snapshot()
        yield self._budget(snapshot.budget)
        yield from self._models(snapshot.models)
        yield from self._workers(snapshot.workers)
        yield from scheduling_families(getattr(snapshot, "scheduling", ()))

    def _budget(self, budget: Any) -> Metric:
        family = GaugeMetricFamily("innkeeper_budget_bytes", "The memory budget.", labels=["kind"])
        for kind in ("total", "charged", "available", "overhead"):
            _add(family, [kind], getattr(budget, f"{kind}_bytes", None))
        return family

    def _models(self, models: Iterable[Any]) -> Iterable[Metric]:
        models = tuple(models)
        state = GaugeMetricFamily("innkeeper_model_state", "The state the model is in.", labels=["model", "state"])
        for model in models:
            _add(state, [model.id, str(model.state)], 1)
        yield state
        for name, what, field in _MODEL_GAUGES:
            gauge = GaugeMetricFamily(name, what, labels=["model"])
            for model in models:
                _add(gauge, [model.id], getattr(model, field, None))
            yield gauge
        for name, what, field in _MODEL_COUNTERS:
            counter = CounterMetricFamily(name, what, labels=["model"])
            for model in models:
                _add(counter, [model.id], getattr(model, field, None))
            yield counter

    def _workers(self, workers: Iterable[Any]) -> Iterable[Metric]:
        workers = tuple(workers)
        info = GaugeMetricFamily("innkeeper_worker_info", "Worker processes.", labels=["pid", "model", "kernels"])
        for worker in workers:
            _add(info, [*_worker(worker), getattr(worker, "kernels", None) or ""], 1)
        yield info
        for name, what, field in _WORKER_GAUGES:
            gauge = GaugeMetricFamily(name, what, labels=["pid", "model"])
            for worker in workers:
                _add(gauge, _worker(worker), getattr(worker, field, None))
            yield gauge


def _worker(worker: Any) -> list[str]:
    return [str(worker.pid), worker.model or ""]


def _add(family: GaugeMetricFamily | CounterMetricFamily, labels: list[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)
