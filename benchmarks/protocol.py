"""What the OpenAI text protocol costs: ``python benchmarks/protocol.py``.

*alone*: parsing a chat request and rendering its answer, without a server; the target is 150 µs a request and 25 µs a token.

*in the gateway*: CPU time of the gateway's process for a streamed chat, from answers of 1 and of many tokens: what the second
takes more is the tokens'. Beside it the bare app of ``residency_bare.py``, which streams the same bytes from memory. An instant
simulated engine makes the tokens, in a process of its own, which is not counted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
from gateway_process import gateway_process
from residency_bare import bare_process
from residency_client import closed_loop, post

from engines.wire import Finished, TextDelta, TokenLogprob, TopLogprob, Usage
from gateway.outbox import Outbox
from gateway.protocols import openai_chat
from gateway.protocols.completion import AnswerHead, completions_of
from gateway.protocols.piece import EndPiece, piece_of
from gateway.registry.catalog import RequestSettings

_REGISTRY = 'workers: {spare: 0}\nmodels: [{id: instant, source: "sim:", simulate: {weights: 1MiB}}]\n'
_CHAT = "/v1/chat/completions"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TOKENS = 200

_MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant. " * 10},
    {"role": "user", "content": "What is the capital of France, and how many people live there? " * 5},
    {"role": "assistant", "content": "Paris, with about two million people. " * 10},
    {"role": "user", "content": [{"type": "text", "text": "And of Spain?"}]},
]
_PLAIN = {"model": "a", "messages": _MESSAGES, "stream": True, "temperature": 0.7, "max_tokens": 200, "user": "me"}
_FULL = {
    **_PLAIN,
    "top_p": 0.9,
    "top_k": 40,
    "seed": 7,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "stop": ["END", "\n\n\n"],
    "logprobs": True,
    "top_logprobs": 5,
    "logit_bias": {str(i): -100 for i in range(20)},
    "stream_options": {"include_usage": True},
    "metadata": {"run": "1"},
}
_HEAD = AnswerHead("chatcmpl-" + "0" * 32, 1700000000, "a", "fp_0123456789ab")
_FINISH = Finished(request_id=1, reason="stop", usage=Usage(prompt_tokens=9, completion_tokens=_TOKENS))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--seconds", type=float, default=2.0, help="of each run against a server")
    arguments.add_argument("--rounds", type=int, default=3)
    chosen = arguments.parse_args()
    _alone()
    _in_the_gateway(chosen.seconds, chosen.rounds)


# --- alone ----------------------------------------------------------------------------------------------------------


def _alone() -> None:
    print("alone, CPU time, best of 7; target: 150 µs a request, 25 µs a token")
    print(f"{'':<34}{'parse':>10}{'begin, end':>12}{'a token':>10}{'whole body':>12}   µs")
    for name, options, alternatives in (
        ("few options", _PLAIN, None),
        ("many options, 5 log-probabilities", _FULL, 5),
    ):
        body = json.dumps(options).encode()
        parse = _best_us(partial(_parse, body))
        none, some = (_best_us(partial(_stream, _deltas(count, alternatives))) for count in (0, _TOKENS))
        whole = _best_us(partial(_whole, _deltas(_TOKENS, alternatives)))
        print(f"{name:<34}{parse:>10.1f}{none:>12.1f}{(some - none) / _TOKENS:>10.2f}{whole:>12.1f}")


def _parse(body: bytes) -> None:
    chat = openai_chat.parse(body)
    chat.ask.text_requests(_SETTINGS, _SIBLINGS)


_SETTINGS = RequestSettings()
_SIBLINGS = itertools.count(1)


def _stream(deltas: list[TextDelta]) -> None:
    """A streamed answer, an event at a time, as a client that keeps up gets it."""
    outbox, stream = Outbox(), openai_chat.ChatStream(_HEAD)
    for delta in deltas:
        outbox.put(piece_of(0, delta))
        stream.render(outbox.take())
    outbox.put(EndPiece(0, _FINISH))
    stream.render(outbox.take())
    stream.end()


def _whole(deltas: list[TextDelta]) -> None:
    outbox = Outbox(separate=0)
    for delta in deltas:
        outbox.put(piece_of(0, delta))
    outbox.put(EndPiece(0, _FINISH))
    (completion,) = completions_of(outbox.take())
    openai_chat.render_body(_HEAD, [completion], logprobs=bool(completion.logprobs))


def _deltas(count: int, alternatives: int | None) -> list[TextDelta]:
    tops = tuple(TopLogprob(i, f" word{i}".encode(), -0.123456789 * i) for i in range(alternatives or 0))
    entry = () if alternatives is None else (TokenLogprob(1, b" word", -0.123456789, tops),)
    return [TextDelta(request_id=1, text=" word", tokens=(1,), logprobs=entry)] * count


def _best_us(run: Callable[[], None]) -> float:
    """The least of seven means, in microseconds of CPU time."""
    began = time.process_time()
    run()
    count = max(1, round(0.03 / max(time.process_time() - began, 1e-6)))

    def mean_us() -> float:
        began = time.process_time()
        for _ in range(count):
            run()
        return (time.process_time() - began) / count * 1e6

    return min(mean_us() for _ in range(7))


# --- in the gateway -------------------------------------------------------------------------------------------------


def _in_the_gateway(seconds: float, rounds: int) -> None:
    bodies = {tokens: _body(tokens) for tokens in (1, _TOKENS)}
    with gateway_process(_REGISTRY) as gateway:
        answers = {f"/{tokens}": _events(gateway.url, body) for tokens, body in bodies.items()}
        with bare_process(answers) as bare:
            print(f"\nCPU of the server's process for a streamed chat, medians of {rounds} rounds of {seconds:g} s")
            print(f"{'':<10}{'a request':>12}{'a token':>10}   µs")
            for name, url, pid in (("gateway", gateway.url, gateway.pid), ("bare app", bare.url, bare.pid)):
                costs = []
                for _ in range(rounds):
                    one, many = (
                        _cpu_us(url, pid, _CHAT if name == "gateway" else f"/{tokens}", body, seconds)
                        for tokens, body in bodies.items()
                    )
                    costs.append((one, (many - one) / (_TOKENS - 1)))
                request, token = (statistics.median(cost[i] for cost in costs) for i in (0, 1))
                print(f"{name:<10}{request:>12.0f}{token:>10.1f}", flush=True)


def _cpu_us(url: str, pid: int, path: str, body: dict[str, object], seconds: float) -> float:
    """CPU time of this process for an answer, in microseconds."""
    request = post(url, path, body)
    closed_loop(url, request, connections=4, seconds=0.3)
    before = _cpu_s(pid)
    load = closed_loop(url, request, connections=4, seconds=seconds)
    return (_cpu_s(pid) - before) / load.answers * 1e6


def _cpu_s(pid: int) -> float:
    """CPU seconds of all threads (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _body(tokens: int) -> dict[str, object]:
    messages = [{"role": "user", "content": "How do you do?"}]
    return {"model": "instant", "messages": messages, "max_tokens": tokens, "stream": True}


def _events(url: str, body: dict[str, object]) -> list[bytes]:
    """The answer's events, a chunk each."""
    answer = httpx.post(url + _CHAT, json=body, timeout=30)
    answer.raise_for_status()
    return [event + b"\n\n" for event in answer.content.split(b"\n\n") if event]


if __name__ == "__main__":
    main()
