"""Events of a request behind a reader that is late."""

from __future__ import annotations

from engines.wire import Finished, TextDelta, TokenLogprob, Usage
from gateway.residency.request_stream import RequestStream


async def test_reader_that_falls_behind_gets_every_log_probability() -> None:
    stream = RequestStream(1, lambda _: None)
    entries = [TokenLogprob(i, b"x", -1.0) for i in range(1500)]
    for i, entry in enumerate(entries):
        stream.put(TextDelta(request_id=1, text="x", tokens=(i,), logprobs=(entry,)))
    stream.put(Finished(request_id=1, reason="stop", usage=Usage()))
    deltas = [event async for event in stream if isinstance(event, TextDelta)]
    assert len(deltas) < len(entries)
    assert [entry for delta in deltas for entry in delta.logprobs] == entries
    assert [token for delta in deltas for token in delta.tokens] == list(range(1500))
