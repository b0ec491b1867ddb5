"""``POST /api/generate``: Ollama's answer to one prompt.

=================================  ==================================================================================
the request has                    the model reads
=================================  ==================================================================================
a ``prompt``                       a chat of ``system`` (else the model's own) and the prompt, through the template
a ``prompt`` and ``raw``           the prompt as it stands, its control tokens too; no template, no system prompt
a ``suffix``                       prompt and suffix as what stands before and behind a gap
none of these                      nothing: the model is loaded, or let go with ``keep_alive`` 0
=================================  ==================================================================================

Source of shapes: Ollama's API documentation, "Generate a completion", and its Go type ``GenerateRequest``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.wire import ChatMessage, InfillPrompt, TextPrompt
from gateway.errors import InvalidRequest
from gateway.protocols.chat_ask import ChatAsk
from gateway.protocols.json_body import decode_object
from gateway.protocols.ollama_duration import read_keep_alive
from gateway.protocols.ollama_messages import check_images
from gateway.protocols.ollama_options import REFUSED, read_format, read_logprobs, read_model_options, read_think
from gateway.protocols.ollama_request import OllamaRequest
from gateway.protocols.options import Limits, OptionTables, read_boolean, read_string, shown, sort_options

__all__ = ["OPTIONS", "parse"]

OPTIONS = OptionTables(
    honoured=frozenset(
        {
            "format",
            "images",
            "keep_alive",
            "logprobs",
            "model",
            "options",
            "priority",
            "prompt",
            "raw",
            "stream",
            "suffix",
            "system",
            "think",
            "top_logprobs",
        }
    ),
    hints=frozenset(),
    refused={
        **REFUSED,
        "context": ([],),
        "height": (0,),
        "steps": (0,),
        "template": ("",),
        "width": (0,),
    },
    instead={
        "context": "the messages of /api/chat",
        "template": "chat_template of the model's registry entry, a Jinja template",
    },
)


def parse(body: bytes, limits: Limits = Limits()) -> OllamaRequest:  # noqa: B008 (frozen)
    """The request in ``body``. InvalidRequest (or RequestTooLarge) names the field, its value and what is allowed."""
    fields, ignored = sort_options(decode_object(body, limits.max_values), OPTIONS)
    check_images(fields.get("images"), "images")
    prompt, suffix, system = (_read_text(fields, name) for name in ("prompt", "suffix", "system"))
    raw = read_boolean(fields, "raw") or False
    reasoning = read_think(fields)
    for name in ("raw", "suffix"):
        if fields.get(name):
            _check_alone(name, system, reasoning.enabled, raw and bool(suffix))
    grammar = read_format(fields)
    options = read_model_options(fields)
    characters = 0
    for field, count in (
        ("prompt", len(prompt)),
        ("suffix", len(suffix)),
        ("system", len(system)),
        ("format", 0 if grammar is None else len(grammar.source)),
    ):
        characters += count
        limits.check_chars(characters, field)
    past = _past_template(prompt, suffix, raw)
    ask = ChatAsk(
        model=read_string(fields, "model"),
        messages=() if past is not None or not prompt else _messages(system, prompt),
        options=options.text,
        clamp=True,
        logprobs=read_logprobs(fields),
        grammar=grammar,
        reasoning=reasoning,
        ignored=(*ignored, *options.ignored),
    )
    return OllamaRequest(
        ask=ask,
        prompt=past,
        shape="generate",
        stream=read_boolean(fields, "stream") is not False,
        keep_alive_s=read_keep_alive(fields),
        context=options.context,
    )


def _read_text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str | None):
        raise InvalidRequest(f"{name} is {shown(value)}; it must be a string", param=name)
    return value or ""


def _check_alone(name: str, system: str, thinks: bool | None, both: bool) -> None:
    """InvalidRequest for what needs the template, beside what goes past it."""
    if both:
        raise InvalidRequest("suffix is given; raw must be false beside it", param="suffix")
    if system:
        raise InvalidRequest(f"{name} is given; system must be empty beside it: no template is used", param="system")
    if thinks:
        raise InvalidRequest(f"{name} is given; think must be false beside it: no template is used", param="think")


def _past_template(prompt: str, suffix: str, raw: bool) -> TextPrompt | InfillPrompt | None:
    if suffix:
        return InfillPrompt(prefix=prompt, suffix=suffix)
    return TextPrompt(text=prompt, parse_special=True) if raw and prompt else None


def _messages(system: str, prompt: str) -> tuple[ChatMessage, ...]:
    user = ChatMessage(role="user", content=prompt)
    return (ChatMessage(role="system", content=system), user) if system else (user,)
