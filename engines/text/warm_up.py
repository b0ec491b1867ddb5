"""Serves rows of every shape that requests come in, while a model loads, and throws the answers away.

A GPU's kernels are compiled when they are first used: the first prompt of an 8B model and its first steps took half a minute, in
which the device thread answers nothing, not even a cancel. Here the load takes that time, and says how far it is. A back end that
can compile many kernels at once is first shown which ones it will be (``CompilingBackend``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise
from typing import Any

import mlx.core as mx

from engines.gguf.kernels.compiling import CompilingBackend
from engines.interface import ReportProgress
from engines.scheduling.admission import KvAdmission, KvCost
from engines.scheduling.pacing import Pacer
from engines.text.batcher import Batcher
from engines.text.row import Row
from engines.text.sampling import SamplingParameters

__all__ = ["ROWS", "warm_up"]

ROWS = (1, 8, 16, 32, 64)
"""Up to so many rows of activations take the same kernels."""

_PROMPT = 160  # tokens: some of them take the kernels for any longer prompt
_STEPS = 3
_COMPILING = 0.8  # of the time that is reported, the first time a machine sees such a model
_DRAWS = (
    SamplingParameters(seed=0, temperature=0.0),
    SamplingParameters(seed=0, temperature=1.0),
    SamplingParameters(seed=0, temperature=0.8, top_k=40, top_p=0.95, logprobs=1),
)


def warm_up(model: Any, width: int, report: ReportProgress, compiling: CompilingBackend | None = None) -> None:
    """Prompts, short and long, and steps of as many rows as decode together, in a batcher of their own, whose policies nobody else
    learns from; on the device thread. ``report`` is told the fraction that is done."""
    begin = 0.0
    if compiling is not None:
        begin = _COMPILING
        # Kernels do not depend on how tokens are drawn.
        compiling.compile_ahead(
            lambda: _serve(model, width, _passes(width, _DRAWS[:1]), lambda fraction: None),
            lambda fraction: report(begin * fraction),
        )
    _serve(model, width, _passes(width, _DRAWS), lambda fraction: report(begin + (1 - begin) * fraction))
    mx.clear_cache()


def _serve(model: Any, width: int, passes: list[list[Row]], report: ReportProgress) -> None:
    batcher = Batcher(model, width=width, eos_ids=frozenset(), admission=KvAdmission(KvCost(0), None), pacer=Pacer())
    for done, rows in enumerate(passes):
        for row in rows:
            batcher.submit(row)
        while batcher.busy:
            batcher.step()
        report((done + 1) / len(passes))


def _passes(width: int, draws: Sequence[SamplingParameters]) -> list[list[Row]]:
    ids = count()
    prompts = [[_row(next(ids), _PROMPT, draw)] for draw in draws]
    # Of one prompt, so that they decode together from their first step on.
    together = [
        [_row(next(ids), 8, draws[i % len(draws)], siblings=most) for i in range(min(width, most))]
        for fewer, most in pairwise(ROWS)
        if width > fewer
    ]
    return prompts + together


def _row(id: int, tokens: int, draw: SamplingParameters, siblings: int | None = None) -> Row:
    length = tokens + _STEPS
    return Row(id, (0,) * tokens, _STEPS, length, length, draw, siblings=siblings)
