"""What a worker of a real model holds, beside one that has only done its imports.

Both are read at the same moment: pages of libraries that processes share count by shares, which change as others come and go.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from engines.device import SmapsProbe
from engines.footprint import estimate
from engines.header import read_header
from engines.wire import (
    Finished,
    Hello,
    LoadModel,
    MemoryReport,
    ModelSpec,
    Ready,
    Sampling,
    Submit,
    TextRequest,
    TokenPrompt,
)
from tests.engines.helpers_worker import RawWorker, raw_worker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the CPU's memory probe needs Linux"),
]

MIB = 1 << 20
PROMPT_TOKENS = 300
# Tables of byte-pair merges beyond what a file of 98 MB leaves for them, which make tokenising ten times faster, and pages of
# libraries that a worker without a model has not touched: as many as no other process shares.
TOKENIZER = 10 * MIB
BOUND_S = 300.0  # of a prefill by the slowest kernels on a busy machine


def held(worker: RawWorker) -> int:
    return SmapsProbe(Path("/proc") / str(worker.process.pid) / "smaps_rollup").read()


@pytest.mark.parametrize("model", ["smollm2_path", "gemma_path"])
def test_worker_holds_little_more_than_the_file(model: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(model)
    file_bytes = path.stat().st_size
    footprint = estimate(read_header(path))
    with raw_worker() as empty, raw_worker() as worker:
        empty.next(Hello)
        spec = ModelSpec(id="m", task="text", format="gguf", paths=(str(path),))
        worker.send(LoadModel(spec=spec, grant_bytes=1024 * MIB))
        worker.socket.settimeout(BOUND_S)
        ready = worker.next(Ready)
        loaded = held(worker) - held(empty)
        assert loaded < 1.15 * file_bytes + TOKENIZER
        assert ready.static_bytes == pytest.approx(loaded, abs=12 * MIB)
        assert footprint.static_bytes == pytest.approx(loaded, rel=0.1)

        worker.send(Submit(request_id=1, request=request_of(PROMPT_TOKENS)))
        answer = worker.answers()
        assert isinstance(answer[-1], Finished) and answer[-1].usage.prompt_tokens == PROMPT_TOKENS
        report = at_rest(worker)
        idle = held(worker) - held(empty)
        assert idle < 1.15 * file_bytes + TOKENIZER + report.kv
        assert idle - loaded < 16 * MIB  # libraries' pages and BLAS's own buffers, used for the first time
        assert report.static == pytest.approx(idle, abs=12 * MIB)
        assert (report.kv, report.mlx_cache) == (0, 0)


def request_of(tokens: int) -> TextRequest:
    return TextRequest(prompt=TokenPrompt(tokens=tuple([5] * tokens)), max_tokens=2, sampling=Sampling(temperature=0.0))


def at_rest(worker: RawWorker) -> MemoryReport:
    """The first report without KV and without MLX's unused buffers."""
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        report = worker.next(MemoryReport)
        if report.kv == report.mlx_cache == 0:
            return report
    raise AssertionError("the worker never came to rest")
