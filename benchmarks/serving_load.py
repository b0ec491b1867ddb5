"""What clients see of a server: streams side by side, and a stream while a long prompt enters."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

import httpx
from serving_servers import Server

__all__ = ["Disturbance", "Load", "closed_loop", "disturbance"]

_WORDS = (
    "river",
    "stone",
    "winter",
    "market",
    "garden",
    "letter",
    "window",
    "engine",
    "morning",
    "copper",
    "silver",
    "island",
)

# Between the first requests of two clients: mlx_lm.server resets those that do not fit its short listen queue.
_APART_S = 0.01


@dataclass
class Stream:
    """Times of a streamed answer, by the wall clock of this process, in seconds."""

    sent: float
    texts: list[float] = field(default_factory=list)  # arrivals of text
    tokens: int = 0


@dataclass(frozen=True)
class Load:
    """Figures of many streams. Times in seconds; ``gaps`` are between the texts of a stream."""

    tokens_s: float
    first: list[float]
    gaps: list[float]


@dataclass(frozen=True)
class Disturbance:
    """A stream's texts a second before a long prompt is read, after it and beside it, and the long prompt's time to its first
    text, beside the stream and alone."""

    before: float
    after: float
    beside: float
    first_beside: float
    first_alone: float

    @property
    def alone(self) -> float:
        """Texts a second that the stream would have had without the prompt: a step takes longer by the same time for each token
        of the context, so of the times a text takes before and after, the mean."""
        return 2 / (1 / self.before + 1 / self.after)


async def closed_loop(server: Server, clients: int, requests: int, tokens: int, words: int = 80) -> Load:
    """``clients`` streams at all times until ``requests`` are answered."""
    streams: list[Stream] = []
    waiting = iter(range(requests))
    async with _client(clients) as client:

        async def ask(place: int) -> None:
            await asyncio.sleep(place * _APART_S)
            for number in waiting:
                streams.append(await _stream(client, server, _prompt(number, words), tokens))

        await _stream(client, server, _prompt(-1, words), 2)  # what is compiled or mapped at first use
        started = time.perf_counter()
        await asyncio.gather(*(ask(place) for place in range(clients)))
        took = time.perf_counter() - started
    first = sorted(stream.texts[0] - stream.sent for stream in streams if stream.texts)
    gaps = sorted(b - a for stream in streams for a, b in zip(stream.texts, stream.texts[1:], strict=False))
    return Load(sum(stream.tokens for stream in streams) / took, first, gaps)


async def disturbance(server: Server, words: int, settle_s: float = 5.0, tokens: int = 6000) -> Disturbance:
    """A stream runs alone for ``settle_s``, then a prompt of ``words`` words enters, then the stream runs alone again, since
    its own context has grown meanwhile. The stream is greedy: a small model then repeats itself and does not come to an end."""
    async with _client(4) as client:
        alone = await _stream(client, server, _prompt(1, words), 2)
        stream = Stream(time.perf_counter())
        running = asyncio.create_task(_stream(client, server, _prompt(2, 20), tokens, stream, temperature=0.0))
        await asyncio.wait([running], timeout=2 * settle_s)  # the first half until it runs evenly
        began = time.perf_counter()
        other = await _stream(client, server, _prompt(3, words), 2)
        after = time.perf_counter()
        await asyncio.wait([running], timeout=settle_s)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    ended = other.texts[0]
    if stream.texts[-1] < after + settle_s / 2:
        raise SystemExit(f"{server.name}: the running stream ended too early; raise tokens")
    return Disturbance(
        before=_rate(stream.texts, began - settle_s, began),
        after=_rate(stream.texts, after, after + settle_s),
        beside=_rate(stream.texts, began, ended),
        first_beside=ended - other.sent,
        first_alone=alone.texts[0] - alone.sent,
    )


def _rate(times: list[float], begin: float, end: float) -> float:
    return sum(begin <= at < end for at in times) / (end - begin)


def _client(connections: int) -> httpx.AsyncClient:
    # A connection a request: some servers close those at rest just when the next request is sent.
    limits = httpx.Limits(max_connections=connections + 2, max_keepalive_connections=0)
    return httpx.AsyncClient(timeout=900, limits=limits)


def _prompt(number: int, words: int) -> str:
    """No two begin alike, so that no cache helps. A word is a token, or two."""
    return f"{number * 7919 + 13} " + " ".join(_WORDS[(number + 3 * i + i // 15) % len(_WORDS)] for i in range(words))


async def _stream(
    client: httpx.AsyncClient,
    server: Server,
    prompt: str,
    tokens: int,
    into: Stream | None = None,
    temperature: float = 0.8,
) -> Stream:
    stream = into or Stream(0.0)
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": temperature,  # and no seed: mlx_lm.server would serve the request alone, the others waiting
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    stream.sent = time.perf_counter()
    async with client.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        if not response.is_success:
            raise SystemExit(f"{server.name}: {response.status_code} {(await response.aread())[:300]!r}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event.get("choices") and event["choices"][0].get("text"):
                stream.texts.append(time.perf_counter())
            if event.get("usage"):
                stream.tokens = event["usage"]["completion_tokens"]
    if not stream.tokens:
        stream.tokens = len(stream.texts)
    return stream
