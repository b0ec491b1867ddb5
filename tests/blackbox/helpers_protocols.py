"""One conversation in the words of four protocols: how it is asked, and what its answer says, streamed or whole.

A :class:`Conversation` is neutral; a :class:`Protocol` writes it down for its route and reads an answer back into a
:class:`Reading`. All of it is raw HTTP: no client library stands between the test and the wire.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

__all__ = ["PROTOCOLS", "Asked", "Called", "Conversation", "Protocol", "Reading", "Result", "Said"]


@dataclass(frozen=True)
class Said:
    """A turn of text."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True)
class Called:
    """The assistant called a function."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What a function answered."""

    call: Called
    text: str


@dataclass(frozen=True)
class Asked:
    """A function that may be called; ``parameters`` is the schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Conversation:
    """What is asked. ``choice``: ``None`` leaves calls to the model, ``required`` wants one, another text is the name of one."""

    model: str
    turns: tuple[Said | Called | Result, ...]
    system: str | None = None
    tools: tuple[Asked, ...] = ()
    choice: str | None = None
    parallel: bool = True
    schema: dict[str, Any] | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int = 8
    thinking: bool = False


@dataclass(frozen=True)
class Reading:
    """What an answer says. ``finish`` is stop, length or tool_calls, whatever the protocol calls it."""

    text: str
    thought: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    finish: str
    prompt_tokens: int
    completion_tokens: int


@dataclass
class _Parts:
    """An answer while it is read."""

    text: str = ""
    thought: str = ""
    calls: list[list[str]] = field(default_factory=list)  # name, arguments as JSON text
    finish: str = ""
    usage: tuple[int, int] = (-1, -1)

    def reading(self) -> Reading:
        calls = tuple((name, json.loads(arguments or "{}")) for name, arguments in self.calls)
        return Reading(self.text, self.thought, calls, self.finish, *self.usage)


Line = tuple[str | None, Any]
"""An event of a stream: its name, where the format has one, and its data."""


class Protocol(ABC):
    """One wire format. ``forces``: a request can say that a function must be called."""

    name: str
    path: str
    forces = True

    def body(self, talk: Conversation, *, stream: bool) -> dict[str, Any]:
        """The request, greedy."""
        return {"model": talk.model, "stream": stream, **self._body(talk, stream)}

    def lines(self, text: str) -> list[Line]:
        """The events of a stream (server-sent), in order, without comments."""
        lines: list[Line] = []
        for block in filter(None, text.split("\n\n")):
            fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
            if "data" in fields:
                data = fields["data"]
                lines.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
        return lines

    def has_text(self, line: Line) -> bool:
        """Whether this event of a stream brings text."""
        parts = _Parts()
        self._event(line, parts)
        return bool(parts.text)

    def read_stream(self, text: str) -> Reading:
        """A whole stream, which must end as the protocol's streams do."""
        lines = self.lines(text)
        parts = _Parts()
        for line in lines:
            self._event(line, parts)
        self._check_end(lines)
        return parts.reading()

    @abstractmethod
    def read_body(self, body: Any) -> Reading:
        """An answer that was not streamed."""

    @abstractmethod
    def error_message(self, response: httpx.Response) -> str:
        """Of an HTTP error, whose envelope must be the protocol's."""

    @abstractmethod
    def stream_error(self, lines: Sequence[Line]) -> str:
        """The message of the one error in a stream, which must end as the protocol's failed streams do."""

    @abstractmethod
    def _body(self, talk: Conversation, stream: bool) -> dict[str, Any]: ...

    @abstractmethod
    def _event(self, line: Line, parts: _Parts) -> None: ...

    @abstractmethod
    def _check_end(self, lines: Sequence[Line]) -> None: ...


class OpenAIChat(Protocol):
    name = "chat"
    path = "/v1/chat/completions"

    def _body(self, talk: Conversation, stream: bool) -> dict[str, Any]:
        messages: list[dict[str, Any]] = [] if talk.system is None else [{"role": "system", "content": talk.system}]
        for turn in talk.turns:
            match turn:
                case Said():
                    messages.append({"role": turn.role, "content": turn.text})
                case Called():
                    function = {"name": turn.name, "arguments": json.dumps(turn.arguments)}
                    call = {"id": turn.id, "type": "function", "function": function}
                    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
                case Result():
                    messages.append({"role": "tool", "tool_call_id": turn.call.id, "content": turn.text})
        body: dict[str, Any] = {"messages": messages, "max_tokens": talk.max_tokens, "temperature": 0}
        if stream:
            body["stream_options"] = {"include_usage": True}
        if talk.tools:
            body["tools"] = [{"type": "function", "function": _function(tool)} for tool in talk.tools]
            body["parallel_tool_calls"] = talk.parallel
        if talk.choice is not None:
            named = {"type": "function", "function": {"name": talk.choice}}
            body["tool_choice"] = talk.choice if talk.choice == "required" else named
        if talk.schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "it", "schema": talk.schema}}
        if talk.stop:
            body["stop"] = list(talk.stop)
        if talk.thinking:
            body["reasoning_effort"] = "medium"
        return body

    def read_body(self, body: Any) -> Reading:
        (choice,) = body["choices"]
        message = choice["message"]
        calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", ())]
        thought = message.get("reasoning_content") or ""
        usage = body["usage"]
        counts = usage["prompt_tokens"], usage["completion_tokens"]
        return _Parts(message["content"] or "", thought, calls, choice["finish_reason"], counts).reading()

    def error_message(self, response: httpx.Response) -> str:
        error = response.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return str(error["message"])

    def stream_error(self, lines: Sequence[Line]) -> str:
        (_, last), (_, end) = lines[-2:]
        assert end == "[DONE]"
        assert [data for _, data in lines[:-1] if "error" in data] == [last]
        return str(last["error"]["message"])

    def _event(self, line: Line, parts: _Parts) -> None:
        _, data = line
        if data == "[DONE]" or "error" in data:
            return
        if data.get("usage"):
            parts.usage = data["usage"]["prompt_tokens"], data["usage"]["completion_tokens"]
        for choice in data["choices"]:
            delta = choice["delta"]
            parts.text += delta.get("content") or ""
            parts.thought += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(parts.calls):
                    parts.calls.append([call["function"]["name"], ""])
                parts.calls[call["index"]][1] += call["function"]["arguments"]
            parts.finish = choice["finish_reason"] or parts.finish

    def _check_end(self, lines: Sequence[Line]) -> None:
        assert lines[-1] == (None, "[DONE]") and lines[-2][1]["choices"] == []


class Responses(Protocol):
    name = "responses"
    path = "/v1/responses"

    def _body(self, talk: Conversation, stream: bool) -> dict[str, Any]:
        items: list[dict[str, Any]] = []
        for turn in talk.turns:
            match turn:
                case Said():
                    items.append({"role": turn.role, "content": turn.text})
                case Called():
                    call = {"call_id": turn.id, "name": turn.name, "arguments": json.dumps(turn.arguments)}
                    items.append({"type": "function_call", **call})
                case Result():
                    items.append({"type": "function_call_output", "call_id": turn.call.id, "output": turn.text})
        body: dict[str, Any] = {"input": items, "max_output_tokens": talk.max_tokens, "temperature": 0}
        if talk.system is not None:
            body["instructions"] = talk.system
        if talk.tools:
            body["tools"] = [{"type": "function", **_function(tool)} for tool in talk.tools]
            body["parallel_tool_calls"] = talk.parallel
        if talk.choice is not None:
            named = {"type": "function", "name": talk.choice}
            body["tool_choice"] = talk.choice if talk.choice == "required" else named
        if talk.schema is not None:
            body["text"] = {"format": {"type": "json_schema", "name": "it", "schema": talk.schema}}
        if talk.stop:
            body["stop"] = list(talk.stop)
        if talk.thinking:
            body["reasoning"] = {"effort": "medium"}
        return body

    def read_body(self, body: Any) -> Reading:
        parts = _Parts()
        for item in body["output"]:
            match item["type"]:
                case "message":
                    parts.text += "".join(part["text"] for part in item["content"])
                case "reasoning":
                    parts.thought += "".join(part["text"] for part in item["content"])
                case "function_call":
                    parts.calls.append([item["name"], item["arguments"]])
        parts.finish, parts.usage = _response_end(body)
        return parts.reading()

    def error_message(self, response: httpx.Response) -> str:
        return OpenAIChat().error_message(response)

    def stream_error(self, lines: Sequence[Line]) -> str:
        (name, error), (end, failed) = lines[-2:]
        assert (name, end) == ("error", "response.failed")
        assert [name for name, _ in lines].count("error") == 1
        assert failed["response"]["status"] == "failed"
        assert failed["response"]["error"]["message"] == error["message"]
        return str(error["message"])

    def _event(self, line: Line, parts: _Parts) -> None:
        name, data = line
        assert name == data["type"]
        match name:
            case "response.output_text.delta":
                parts.text += data["delta"]
            case "response.reasoning_text.delta":
                parts.thought += data["delta"]
            case "response.output_item.added" if data["item"]["type"] == "function_call":
                parts.calls.append([data["item"]["name"], ""])
            case "response.function_call_arguments.delta":
                parts.calls[-1][1] += data["delta"]
            case "response.completed" | "response.incomplete":
                parts.finish, parts.usage = _response_end(data["response"])

    def _check_end(self, lines: Sequence[Line]) -> None:
        assert [data["sequence_number"] for _, data in lines] == list(range(len(lines)))
        assert lines[0][0] == "response.created"
        assert lines[-1][0] in ("response.completed", "response.incomplete")


def _response_end(response: Any) -> tuple[str, tuple[int, int]]:
    usage = response["usage"]["input_tokens"], response["usage"]["output_tokens"]
    if response["status"] == "incomplete":
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        return "length", usage
    called = response["output"][-1]["type"] == "function_call"
    return "tool_calls" if called else "stop", usage


_STOP_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
}


class Anthropic(Protocol):
    name = "messages"
    path = "/v1/messages"

    def _body(self, talk: Conversation, stream: bool) -> dict[str, Any]:
        messages: list[dict[str, Any]] = []
        for turn in talk.turns:
            match turn:
                case Said():
                    messages.append({"role": turn.role, "content": turn.text})
                case Called():
                    use = {"type": "tool_use", "id": turn.id, "name": turn.name, "input": turn.arguments}
                    messages.append({"role": "assistant", "content": [use]})
                case Result():
                    result = {"type": "tool_result", "tool_use_id": turn.call.id, "content": turn.text}
                    messages.append({"role": "user", "content": [result]})
        body: dict[str, Any] = {"messages": messages, "max_tokens": talk.max_tokens, "temperature": 0}
        if talk.system is not None:
            body["system"] = talk.system
        if talk.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
                for tool in talk.tools
            ]
            kind = {None: "auto", "required": "any"}.get(talk.choice, "tool")
            named = {"name": talk.choice} if kind == "tool" else {}
            body["tool_choice"] = {"type": kind, "disable_parallel_tool_use": not talk.parallel, **named}
        if talk.schema is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": talk.schema}}
        if talk.stop:
            body["stop_sequences"] = list(talk.stop)
        if talk.thinking:
            body["thinking"] = {"type": "adaptive"}
        return body

    def read_body(self, body: Any) -> Reading:
        parts = _Parts(finish=_STOP_REASONS[body["stop_reason"]], usage=self._usage(body["usage"]))
        for block in body["content"]:
            match block["type"]:
                case "text":
                    parts.text += block["text"]
                case "thinking":
                    parts.thought += block["thinking"]
                case "tool_use":
                    parts.calls.append([block["name"], json.dumps(block["input"])])
        return parts.reading()

    def error_message(self, response: httpx.Response) -> str:
        body = response.json()
        assert body["type"] == "error" and body["request_id"] == response.headers["request-id"]
        return str(body["error"]["message"])

    def stream_error(self, lines: Sequence[Line]) -> str:
        name, last = lines[-1]
        assert name == "error" and [name for name, _ in lines].count("error") == 1
        return str(last["error"]["message"])

    def _event(self, line: Line, parts: _Parts) -> None:
        name, data = line
        assert name == data["type"]
        match data:
            case {"type": "content_block_start", "content_block": {"type": "tool_use", "name": called}}:
                parts.calls.append([called, ""])
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}:
                parts.text += text
            case {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": thought}}:
                parts.thought += thought
            case {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": arguments}}:
                parts.calls[-1][1] += arguments
            case {"type": "message_delta"}:
                parts.finish = _STOP_REASONS[data["delta"]["stop_reason"]]
                parts.usage = self._usage(data["usage"])

    def _check_end(self, lines: Sequence[Line]) -> None:
        names = [name for name, _ in lines if name != "ping"]
        assert (names[0], names[-2:]) == ("message_start", ["message_delta", "message_stop"])

    @staticmethod
    def _usage(usage: Any) -> tuple[int, int]:
        return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]


class OllamaChat(Protocol):
    name = "ollama"
    path = "/api/chat"
    forces = False

    def lines(self, text: str) -> list[Line]:
        return [(None, json.loads(line)) for line in text.splitlines()]

    def _body(self, talk: Conversation, stream: bool) -> dict[str, Any]:
        assert talk.choice is None and talk.parallel
        messages: list[dict[str, Any]] = [] if talk.system is None else [{"role": "system", "content": talk.system}]
        for turn in talk.turns:
            match turn:
                case Said():
                    messages.append({"role": turn.role, "content": turn.text})
                case Called():
                    function = {"name": turn.name, "arguments": turn.arguments}
                    messages.append({"role": "assistant", "content": "", "tool_calls": [{"function": function}]})
                case Result():
                    messages.append({"role": "tool", "tool_name": turn.call.name, "content": turn.text})
        options: dict[str, Any] = {"temperature": 0, "num_predict": talk.max_tokens}
        if talk.stop:
            options["stop"] = list(talk.stop)
        body: dict[str, Any] = {"messages": messages, "options": options}
        if talk.tools:
            body["tools"] = [{"type": "function", "function": _function(tool)} for tool in talk.tools]
        if talk.schema is not None:
            body["format"] = talk.schema
        if talk.thinking:
            body["think"] = True
        return body

    def read_body(self, body: Any) -> Reading:
        parts = _Parts()
        self._event((None, body), parts)
        return parts.reading()

    def error_message(self, response: httpx.Response) -> str:
        body = response.json()
        assert body.keys() == {"error"}
        return str(body["error"])

    def stream_error(self, lines: Sequence[Line]) -> str:
        *before, (_, last) = lines
        assert last.keys() == {"error"} and not any("error" in data or data["done"] for _, data in before)
        return str(last["error"])

    def _event(self, line: Line, parts: _Parts) -> None:
        _, data = line
        if "error" in data:
            return
        message = data["message"]
        parts.text += message["content"]
        parts.thought += message.get("thinking", "")
        for call in message.get("tool_calls", ()):
            parts.calls.append([call["function"]["name"], json.dumps(call["function"]["arguments"])])
        if data["done"]:
            reason = data["done_reason"]
            parts.finish = "tool_calls" if parts.calls and reason == "stop" else reason
            parts.usage = data["prompt_eval_count"], data["eval_count"]

    def _check_end(self, lines: Sequence[Line]) -> None:
        assert [data["done"] for _, data in lines] == [False] * (len(lines) - 1) + [True]


def _function(tool: Asked) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


PROTOCOLS: tuple[Protocol, ...] = (OpenAIChat(), Responses(), Anthropic(), OllamaChat())
"""All four."""
