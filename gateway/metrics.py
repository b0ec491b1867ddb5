"""What the gateway counts, in a registry of its own; as Prometheus text and as JSON.

====================================== ========= ================================================================
metric                                 kind      labels, and what it counts
====================================== ========= ================================================================
``innkeeper_requests_total``           counter   route, method, status: HTTP requests answered (499: client left)
``innkeeper_answers_total``            counter   model, outcome (ok, error, cancelled): inference requests ended
``innkeeper_tokens_total``             counter   model, kind (prompt, completion)
``innkeeper_inputs_total``             counter   model: texts that vectors or scores were made of
``innkeeper_queue_wait_seconds``       histogram model: from the request's parse until its prompt begins to be read
``innkeeper_first_text_seconds``       histogram model: from the request's parse to its first text
``innkeeper_answers_active``           gauge     inference requests under way
``innkeeper_asyncio_tasks``            gauge     asyncio tasks of the gateway
====================================== ========= ================================================================

The residency's numbers (leases, queue, budget, workers) join them through a collector (``residency_metrics.py``).
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.registry import Collector

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FIRST_TEXT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_QUEUE_WAIT_BUCKETS = (0.001, 0.005, *_FIRST_TEXT_BUCKETS)


def _task_count() -> int:
    """Tasks of the running loop; 0 where none runs."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


class Metrics:
    """The counters of one gateway; two gateways in a process do not share any."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "innkeeper_requests", "HTTP requests answered.", ("route", "method", "status"), registry=self._registry
        )
        self._answers = Counter(
            "innkeeper_answers", "Inference requests ended.", ("model", "outcome"), registry=self._registry
        )
        self._tokens = Counter("innkeeper_tokens", "Tokens read and made.", ("model", "kind"), registry=self._registry)
        self._inputs = Counter(
            "innkeeper_inputs", "Texts that vectors or scores were made of.", ("model",), registry=self._registry
        )
        self._queue_wait = Histogram(
            "innkeeper_queue_wait_seconds",
            "Seconds from a request until its prompt begins to be read.",
            ("model",),
            buckets=_QUEUE_WAIT_BUCKETS,
            registry=self._registry,
        )
        self._first_text = Histogram(
            "innkeeper_first_text_seconds",
            "Seconds from a request to its first text.",
            ("model",),
            buckets=_FIRST_TEXT_BUCKETS,
            registry=self._registry,
        )
        self.active = Gauge("innkeeper_answers_active", "Inference requests under way.", registry=self._registry)

        # ``labels`` takes a lock and checks each value, for every request; these remember what it answered.
        self._requests_of = cache(self._requests.labels)
        self._answers_of = cache(self._answers.labels)
        self._tokens_of = cache(self._tokens.labels)
        self._inputs_of = cache(self._inputs.labels)
        self._queue_wait_of = cache(self._queue_wait.labels)
        self._first_text_of = cache(self._first_text.labels)

        tasks = Gauge("innkeeper_asyncio_tasks", "Asyncio tasks of the gateway.", registry=self._registry)
        tasks.set_function(_task_count)

    def add(self, collector: Collector) -> None:
        """Adds numbers that are read when they are asked for."""
        self._registry.register(collector)

    def requested(self, route: str, method: str, status: int) -> None:
        """One HTTP request was answered."""
        self._requests_of(route, method, str(status)).inc()

    def admitted(self, model: str, queue_wait_s: float) -> None:
        """The first prompt of an inference request begins to be read."""
        self._queue_wait_of(model).observe(queue_wait_s)

    def answered(
        self,
        model: str,
        outcome: str,
        *,
        prompt_tokens: int,
        completion_tokens: int,
        first_text_s: float | None,
        inputs: int = 0,
    ) -> None:
        """One inference request ended. ``inputs`` are the texts that it was answered vectors or scores of."""
        self._answers_of(model, outcome).inc()
        self._tokens_of(model, "prompt").inc(prompt_tokens)
        self._tokens_of(model, "completion").inc(completion_tokens)
        if inputs:
            self._inputs_of(model).inc(inputs)
        if first_text_s is not None:
            self._first_text_of(model).observe(first_text_s)

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self._registry)

    def as_json(self) -> dict[str, Any]:
        """All of them: name → help, kind and samples with their labels."""
        return {
            family.name: {
                "help": family.documentation,
                "kind": family.type,
                "samples": [
                    {"name": sample.name, "labels": sample.labels, "value": sample.value} for sample in family.samples
                ],
            }
            for family in self._registry.collect()
        }
