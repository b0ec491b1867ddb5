"""Transcripts: a request, what the worker is asked, what it says, and the answer, each in one readable file.

A file of ``transcripts/`` has four parts, each begun by a line ``== name``:

- ``request``: the path, then the JSON body
- ``asked``: the worker's requests, one JSON object a line; none for a request that is refused
- ``said``: the workers' events, each with the index of its completion: ``0 {"text": "Hi"}``,
  ``0 {"thought": "Hm"}``, ``0 {"call": 0, "id": "c1", "name": "f"}``, ``0 {"call": 0, "arguments": "{"}``,
  ``0 {"finish": "stop", "prompt": 3, "completion": 2}``, or ``0 {"error": "worker_died", "message": "…"}``. First may come
  ``0 {"admitted": 3}``, which an Anthropic stream is told. A finish may have a ``stop``, the sequence that matched. A text may have
  ``tokens``, each ``[text, log-probability, [[text, log-probability], …]]``; bytes that are not UTF-8 are written as Python
  decodes them with ``surrogateescape``: ``\\udcf0``. Routes of many texts are told ``0 {"vectors": [[…], …], "tokens": [2, …]}``
  (the numbers are rounded to float32) or ``0 {"raw": [1.5, …], "sigmoid": […], "tokens": […]}``, each from where the last one ended
- ``answer``: the events of a stream as they are sent, or a body, indented

``python -m tests.gateway.protocols.helpers_transcripts`` writes ``asked`` and ``answer`` of every file anew from the code as it
is; read the difference before you keep it.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from engines.wire import (
    Admitted,
    EmbedRequest,
    Finished,
    ScoreRequest,
    Scores,
    TextDelta,
    TextRequest,
    TokenLogprob,
    TopLogprob,
    Usage,
    Vectors,
    WireError,
)
from gateway.errors import GatewayError, from_wire
from gateway.protocols import (
    anthropic_request,
    embeddings,
    ollama_chat,
    ollama_embed,
    ollama_generate,
    openai_chat,
    openai_completions,
    rerank,
    responses_request,
    score,
)
from gateway.protocols.anthropic_answer import MessageStream
from gateway.protocols.completion import AnswerHead, BodyFormat, StreamFormat, completions_of
from gateway.protocols.envelopes import render
from gateway.protocols.ollama_times import AnswerTimes
from gateway.protocols.options import Limits
from gateway.protocols.piece import ArgumentsPiece, CallPiece, EndPiece, Piece, TextPiece, ThoughtPiece
from gateway.protocols.responses_errors import in_own_terms
from gateway.protocols.responses_object import Frame
from gateway.protocols.responses_stream import ResponseBody, ResponseStream
from gateway.registry.catalog import RequestSettings

__all__ = ["FILES", "Transcript", "performed", "read_transcript"]

FOLDER = Path(__file__).parent / "transcripts"
FILES = sorted(FOLDER.glob("*.txt"))
NOW = 1_700_000_000.25
_OLLAMA = {"/api/chat": ollama_chat.parse, "/api/generate": ollama_generate.parse}
_PARTS = ("request", "asked", "said", "answer")


@dataclass(frozen=True)
class Transcript:
    """One file."""

    path: str
    body: dict[str, Any]
    asked: str
    said: str
    answer: str

    @property
    def text(self) -> str:
        body = json.dumps(self.body, ensure_ascii=False)
        values = (f"{self.path}\n{body}\n", self.asked, self.said, self.answer)
        return "\n".join(f"== {name}\n{value}" for name, value in zip(_PARTS, values, strict=True))


def read_transcript(file: Path) -> Transcript:
    """The file's four parts."""
    text = "\n" + file.read_text(encoding="utf-8")
    parts = {}
    for name, following in itertools.zip_longest(_PARTS, _PARTS[1:]):
        _, _, rest = text.partition(f"\n== {name}\n")
        parts[name] = rest.partition(f"\n== {following}\n")[0] if following else rest
    path, _, body = parts["request"].partition("\n")
    return Transcript(path, json.loads(body), parts["asked"], parts["said"], parts["answer"])


def performed(transcript: Transcript) -> Transcript:
    """What the code makes of its request and of what the worker says."""
    if (parse_texts := _TEXTS.get(transcript.path)) is not None:
        return _performed_texts(transcript, parse_texts)
    try:
        asked, stream, body = _parse(transcript)
    except GatewayError as refusal:
        return replace(transcript, asked="", answer=_refusal(refusal, transcript.path))
    pieces, error = _pieces(transcript.said)
    if error is not None and transcript.path == "/v1/responses":
        error = in_own_terms(error)
    if isinstance(stream, MessageStream) and transcript.said.startswith('0 {"admitted": '):
        stream.admitted(json.loads(transcript.said.partition("\n")[0][2:])["admitted"])
    if stream is not None:
        answer = b"".join(stream.render([piece]) for piece in pieces)
        answer += stream.end() if error is None else stream.failure(error)
        return replace(transcript, asked=_lines(asked), answer=answer.decode())
    if error is not None:
        return replace(transcript, asked=_lines(asked), answer=_refusal(error, transcript.path))
    return replace(transcript, asked=_lines(asked), answer=_indented(body(completions_of(pieces))))


def _parse(transcript: Transcript) -> tuple[list[TextRequest], StreamFormat | None, BodyFormat]:
    content = json.dumps(transcript.body).encode()
    head = AnswerHead("id-1", 1700000000, transcript.body["model"], "fp_1")
    if transcript.path == "/v1/chat/completions":
        chat = openai_chat.parse(content)
        asked = chat.ask.text_requests(RequestSettings(), itertools.count(1))
        return asked, chat.stream_format(head), chat.body_format(head)
    if transcript.path == "/v1/messages":
        messages = anthropic_request.parse(content)
        asked = messages.text_requests(RequestSettings(), itertools.count(1))
        return asked, messages.stream_format(head, "req-1"), messages.body_format(head)
    if transcript.path == "/v1/responses":
        return _parse_response(content)
    if (parse_ollama := _OLLAMA.get(transcript.path)) is not None:
        wish, times = parse_ollama(content), _times()
        asked = wish.text_requests(RequestSettings(), itertools.count(1))
        return asked, wish.stream_format(head, times, lambda: NOW), wish.body_format(head, times, lambda: NOW)
    request = openai_completions.parse(content)
    asked = request.text_requests(RequestSettings(), itertools.count(1))
    return asked, request.stream_format(head), request.body_format(head)


_Asked = EmbedRequest | ScoreRequest | None
_Render = Callable[[Sequence[Any], Usage], bytes]
_HEAD = AnswerHead("id-1", 1700000000, "a")


def _parse_embeddings(content: bytes) -> tuple[_Asked, _Render]:
    wish = embeddings.parse(content)
    return wish.ask, lambda parts, usage: embeddings.render("a", wish.encoding, parts, usage)


def _parse_rerank(content: bytes) -> tuple[_Asked, _Render]:
    wish = rerank.parse(content)
    return wish.ask, lambda parts, usage: rerank.render("id-1", "a", wish, parts, usage)


def _parse_score(content: bytes) -> tuple[_Asked, _Render]:
    wish = score.parse(content)
    return wish.ask, lambda parts, usage: score.render(_HEAD, wish, parts, usage)


def _parse_embed(content: bytes) -> tuple[_Asked, _Render]:
    times = _times()
    return ollama_embed.parse_embed(content).ask, lambda parts, usage: ollama_embed.render_embed(
        "a", times, parts, usage
    )


def _parse_older_embeddings(content: bytes) -> tuple[_Asked, _Render]:
    return ollama_embed.parse_embeddings(content).ask, ollama_embed.render_embeddings


_TEXTS: dict[str, Callable[[bytes], tuple[_Asked, _Render]]] = {
    "/v1/embeddings": _parse_embeddings,
    "/v1/rerank": _parse_rerank,
    "/v1/score": _parse_score,
    "/api/embed": _parse_embed,
    "/api/embeddings": _parse_older_embeddings,
}


def _performed_texts(transcript: Transcript, parse: Callable[[bytes], tuple[_Asked, _Render]]) -> Transcript:
    """Of a route whose answer is vectors or scores of many texts."""
    try:
        ask, render_texts = parse(json.dumps(transcript.body).encode())
    except GatewayError as refusal:
        return replace(transcript, asked="", answer=_refusal(refusal, transcript.path))
    asked = "" if ask is None else _lines([ask])
    parts: list[Vectors | Scores] = []
    usage, first = Usage(), 0
    for line in transcript.said.splitlines():
        event = json.loads(line.removeprefix("0 "))
        if "error" in event:
            error = from_wire(msgspec.convert({**event, "code": event["error"]}, WireError))
            return replace(transcript, asked=asked, answer=_refusal(error, transcript.path))
        if "finish" in event:
            usage = _finish(event).usage
            continue
        parts.append(_texts_part(event, first))
        first += len(event["tokens"])
    return replace(transcript, asked=asked, answer=_indented(render_texts(parts, usage)))


def _texts_part(event: dict[str, Any], first: int) -> Vectors | Scores:
    tokens = tuple(event["tokens"])
    if "raw" in event:
        raw, sigmoid = tuple(event["raw"]), tuple(event["sigmoid"])
        return Scores(request_id=1, first=first, raw=raw, sigmoid=sigmoid, tokens=tokens)
    data = b"".join(struct.pack(f"<{len(vector)}f", *vector) for vector in event["vectors"])
    return Vectors(request_id=1, first=first, dims=len(event["vectors"][0]), data=data, tokens=tokens)


def _parse_response(content: bytes) -> tuple[list[TextRequest], StreamFormat | None, BodyFormat]:
    wish = responses_request.parse(content)
    ask = wish.with_items((), wish.own_items({}, "1"), Limits())
    asked = ask.text_requests(RequestSettings(), itertools.count(1))
    sampling = asked[0].sampling
    shown = {**wish.shown, "temperature": sampling.temperature, "top_p": sampling.top_p}
    frame = Frame(AnswerHead("resp_1", 1700000000, ask.model), shown, wish.shape, lambda: 1700000001.5)
    return asked, ResponseStream(frame) if wish.stream else None, ResponseBody(frame)


def _times() -> AnswerTimes:
    """An answer each part of which took some milliseconds: 1 to be leased and admitted, 2 to the first token, 4 to the last."""
    times = AnswerTimes(iter((0, 1_000_000, 2_000_000, 4_000_000, 8_000_000)).__next__)
    times.leased()
    for event in (
        Admitted(request_id=1, prompt_tokens=3),
        TextDelta(request_id=1, text="x"),
        Finished(request_id=1, reason="stop", usage=Usage()),
    ):
        times.seen(event)
    return times


def _pieces(said: str) -> tuple[list[Piece], GatewayError | None]:
    """A piece an event, up to an error."""
    pieces: list[Piece] = []
    for line in said.splitlines():
        index, _, text = line.partition(" ")
        event = json.loads(text)
        if "error" in event:
            return pieces, from_wire(msgspec.convert({**event, "code": event["error"]}, WireError))
        if "admitted" in event:
            continue
        pieces.append(_piece(int(index), event))
    return pieces, None


def _piece(index: int, event: dict[str, Any]) -> Piece:
    if "finish" in event:
        return EndPiece(index, _finish(event))
    if "thought" in event:
        return ThoughtPiece(index, event["thought"])
    if "name" in event:
        return CallPiece(index, event["call"], event["id"], event["name"])
    if "arguments" in event:
        return ArgumentsPiece(index, event["call"], event["arguments"])
    return TextPiece(index, event["text"], tuple(_token(*token) for token in event.get("tokens", ())))


def _finish(event: dict[str, Any]) -> Finished:
    usage = Usage(
        prompt_tokens=event["prompt"],
        completion_tokens=event["completion"],
        cached_tokens=event.get("cached", 0),
        reasoning_tokens=event.get("reasoning", 0),
    )
    return Finished(request_id=1, reason=event["finish"], usage=usage, stop_sequence=event.get("stop"))


def _token(text: str, logprob: float | None, top: list[tuple[str, float]] = []) -> TokenLogprob:  # noqa: B006 (only read)
    return TokenLogprob(1, _raw(text), logprob, tuple(TopLogprob(1, _raw(other), value) for other, value in top))


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _lines(requests: Sequence[TextRequest | EmbedRequest | ScoreRequest]) -> str:
    return "".join(f"{msgspec.json.encode(request).decode()}\n" for request in requests)


def _refusal(error: GatewayError, path: str) -> str:
    rendered = render(error, path, "req-1")
    return f"{rendered.status}\n{_indented(rendered.body)}"


def _indented(body: bytes) -> str:
    return f"{msgspec.json.format(body, indent=2).decode()}\n"


def _rewrite() -> None:
    for file in FILES:
        file.write_text(performed(read_transcript(file)).text, encoding="utf-8")


if __name__ == "__main__":
    _rewrite()
