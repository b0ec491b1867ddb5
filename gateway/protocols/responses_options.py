"""Options of the Responses API that no other protocol has in this shape: ``text``, ``reasoning``, ``include``, ``metadata``,
``stream``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.wire import Grammar
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.protocols.grammar_options import json_schema_grammar
from gateway.protocols.options import (
    MAX_TOKENS,
    read_boolean,
    read_choice,
    read_integer,
    read_object,
    read_string,
    shown,
)
from gateway.protocols.reasoning_options import ALL_EFFORTS
from gateway.registry.reasoning_settings import ReasoningSettings

__all__ = [
    "ENCRYPTED",
    "INCLUDES",
    "LOGPROBS",
    "SUMMARIES",
    "VERBOSITIES",
    "read_format",
    "read_include",
    "read_metadata",
    "read_reasoning",
    "read_stream",
    "read_text",
    "verbosity_hint",
]

MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
# Of tools that this server does not run, and of pictures: there is never anything to include.
_VACUOUS = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
INCLUDES = (LOGPROBS, ENCRYPTED, *_VACUOUS)
SUMMARIES = ("auto", "concise", "detailed")
VERBOSITIES = ("low", "medium", "high")


def read_text(options: Mapping[str, Any], field: str) -> str | None:
    """A string, None where absent."""
    value = options.get(field)
    if not isinstance(value, str | None):
        raise InvalidRequest(f"{field} is {shown(value)}; it must be a string", param=field)
    return value


def read_format(value: Any) -> Grammar | None:
    """``text.format``: what the answer's text must match."""
    field = "text.format"
    kind = value.get("type") if isinstance(value, dict) else None
    match kind:
        case None if value is None:
            return None
        case "text":
            return None
        case "json_object":
            return Grammar(kind="json_object")
        case "json_schema":
            read_object({field: value}, field, ("type", "name", "description", "schema", "strict"))
            read_string({f"{field}.name": value.get("name")}, f"{field}.name")
            read_text({f"{field}.description": value.get("description")}, f"{field}.description")
            read_boolean({f"{field}.strict": value.get("strict")}, f"{field}.strict")
            return json_schema_grammar(value.get("schema"), f"{field}.schema")
    allowed = "'text', 'json_object' or 'json_schema'"
    if isinstance(kind, str):
        message = f"{field}.type is {shown(kind)}, which is not supported; it must be {allowed}"
        raise UnsupportedParameter(message, param=f"{field}.type")
    raise InvalidRequest(f"{field} is {shown(value)}; it must be an object whose type is {allowed}", param=field)


def verbosity_hint(form: Mapping[str, Any]) -> tuple[str, ...]:
    """``text.verbosity`` where it is given: no model here can be told."""
    if read_choice({"text.verbosity": form.get("verbosity")}, "text.verbosity", VERBOSITIES) is None:
        return ()
    return ("text.verbosity",)


def read_reasoning(options: Mapping[str, Any]) -> tuple[ReasoningSettings, bool, tuple[str, ...]]:
    """What is asked of the model, whether its thinking is shown as a summary, and hints.

    Nothing here sums up: a summary is the thinking itself, whatever length of it was asked for.
    """
    known = ("context", "effort", "enabled", "generate_summary", "max_tokens", "mode", "summary")
    given = read_object(options, "reasoning", known)
    beside = {f"reasoning.{name}": value for name, value in given.items()}
    for name, neutral in (("context", "auto"), ("mode", "standard")):
        if (value := given.get(name)) not in (None, neutral):
            message = f"reasoning.{name}: {shown(value)} is not supported; it may be {neutral!r}"
            raise UnsupportedParameter(message, param=f"reasoning.{name}")
    effort = read_choice(beside, "reasoning.effort", ALL_EFFORTS)
    enabled = read_boolean(beside, "reasoning.enabled")
    if enabled is not None and effort is not None and enabled != (effort != "none"):
        message = f"reasoning.enabled is {shown(enabled)} and reasoning.effort {shown(effort)}; they must agree"
        raise InvalidRequest(message, param="reasoning.enabled")
    summaries = [read_choice(beside, f"reasoning.{name}", SUMMARIES) for name in ("summary", "generate_summary")]
    asked = ReasoningSettings(
        enabled=enabled if effort is None else effort != "none",
        effort=None if effort == "none" else effort,
        budget=read_integer(beside, "reasoning.max_tokens", 0, MAX_TOKENS),
    )
    return asked, any(summaries), ("reasoning.summary",) if "concise" in summaries else ()


def read_include(options: Mapping[str, Any]) -> tuple[frozenset[str], tuple[str, ...]]:
    """What more the answer holds, and what was asked for that is never there."""
    value = options.get("include")
    if value is None:
        return frozenset(), ()
    if not isinstance(value, list):
        raise InvalidRequest(f"include is {shown(value)}; it must be an array of strings", param="include")
    for i, name in enumerate(value):
        if name not in INCLUDES:
            message = f"include[{i}] is {shown(name)}; it must be one of {', '.join(INCLUDES)}"
            raise InvalidRequest(message, param=f"include[{i}]")
    return frozenset(value), tuple(f"include.{name}" for name in _VACUOUS if name in value)


def read_stream(options: Mapping[str, Any]) -> tuple[bool, tuple[str, ...]]:
    """Whether the answer is streamed. Obfuscation would pad events, and cannot change the text."""
    stream = read_boolean(options, "stream") or False
    beside = read_object(options, "stream_options", ("include_obfuscation",))
    field = "stream_options.include_obfuscation"
    padded = read_boolean({field: beside.get("include_obfuscation")}, field)
    if beside and not stream:
        raise InvalidRequest("stream_options is allowed only when stream is true", param="stream_options")
    return stream, (field,) if padded else ()


def read_metadata(options: Mapping[str, Any]) -> dict[str, str]:
    """Up to 16 pairs of texts, which are stored and shown."""
    given = read_object(options, "metadata")
    if len(given) > MAX_METADATA:
        message = f"metadata holds {len(given)} pairs; it may hold {MAX_METADATA}"
        raise InvalidRequest(message, param="metadata")
    for name, value in given.items():
        if len(name) > MAX_METADATA_KEY or not isinstance(value, str) or len(value) > MAX_METADATA_VALUE:
            message = (
                f"metadata.{name[:MAX_METADATA_KEY]} is {shown(value)}; keys have up to {MAX_METADATA_KEY} characters, "
                f"values are strings of up to {MAX_METADATA_VALUE}"
            )
            raise InvalidRequest(message, param=f"metadata.{name[:MAX_METADATA_KEY]}")
    return given
