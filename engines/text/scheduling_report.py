"""What the batcher says of its scheduling, for the gateway's metrics."""

from __future__ import annotations

from engines.text.batcher import Batcher
from engines.wire import PriorityCounts, SchedulingReport

__all__ = ["scheduling_report"]


def scheduling_report(batcher: Batcher) -> SchedulingReport:
    """Of now."""
    reception, running, watch, pacer = batcher.reception, batcher.running, batcher.watch, batcher.pacer
    grant = batcher.admission.grant_bytes
    return SchedulingReport(
        width=reception.width,
        decoding=len(running.cohorts),
        prefilling=int(running.prefill is not None),
        waiting=len(reception.waiting),
        deferred=len(reception.deferred),
        by_priority=PriorityCounts(**reception.waiting.by_priority()),
        ratio=pacer.ratio,
        chunk_tokens=watch.governor.chunk(pacer.chunk_tokens),
        chunk_cost_s=pacer.chunk_cost_s,
        step_cost_s=pacer.step_cost_s,
        band=watch.governor.band,
        headroom_bytes=None if grant is None else max(0, grant - batcher.kv_bytes),
        growth_bytes_s=watch.governor.growth_bytes_s,
        prefill_tokens_s=pacer.prefill_tokens_s,
        decode_tokens_s=pacer.decode_tokens_s,
        frontier_tokens=running.deepest,
        bytes_per_row_token=watch.bytes_per_row_token,
        preemptions=watch.preemptions,
        sheds=watch.sheds,
        cohorts=len(running.cohorts.batches),
        failures_by_memory=watch.failures,
        inter_token=batcher.times.inter_token.read(),
        queue_wait=batcher.times.queue_wait.read(),
        ttft=batcher.times.ttft.read(),
    )
