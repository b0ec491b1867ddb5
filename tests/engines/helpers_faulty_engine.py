"""A text engine over a tiny stock model that breaks as the model's id says, for tests of a real worker process.

``errors 5 12``: memory runs out in the model's calls of these numbers, and in every call that reads token MARK. ``slow 0.05``: a
call lasts at least so many seconds.
"""

from __future__ import annotations

import time
from typing import Any

import mlx.core as mx

from engines.interface import EngineInfo, ReportProgress
from engines.scheduling.admission import KvCost
from engines.text.engine import GgufTextEngine
from engines.wire import LoadModel
from tests.engines.text.helpers_engine import PLAIN, ScriptChat, ScriptTokenizer
from tests.engines.text.helpers_faulty_model import FaultyModel
from tests.engines.text.helpers_rows import EOS, VOCABULARY, stock_model

__all__ = ["KV_BYTES", "MARK", "build"]

KV_BYTES = 512  # a token: 2 layers, 2 heads, 16 numbers, keys and values, float32
MARK = 95


def build(load: LoadModel, report: ReportProgress) -> GgufTextEngine:
    how, *numbers = load.spec.id.split()
    slow_s = float(numbers[0]) if how == "slow" else 0.0

    def breaks(ids: mx.array) -> bool:
        time.sleep(slow_s)
        return how == "errors" and MARK in ids.flatten().tolist()  # type: ignore[operator]

    model: Any = FaultyModel(stock_model("llama"), map(int, numbers) if how == "errors" else (), when=breaks)
    tokenizer = ScriptTokenizer([f"{token} " for token in range(VOCABULARY - 1)])
    info = EngineInfo(kv_bytes_per_token=KV_BYTES, context=2048, width=8, kernels="portable", device="cpu")
    return GgufTextEngine(
        model,
        tokenizer,
        ScriptChat(PLAIN),
        frozenset({EOS}),
        info,
        KvCost(KV_BYTES),
        load.grant_bytes,
        scheduling=load.spec.scheduling,
    )
