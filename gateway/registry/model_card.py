"""What people's tools are told of a model: what it is, from its file's header, and how this server runs it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from engines.detect import Checkpoint
from engines.header import GgufArray, GgufHeader, MetadataValue
from gateway.registry.capabilities import capabilities_of, shows_thinking, takes_effort
from gateway.registry.catalog import ResolvedModel
from gateway.registry.file_types import FILE_TYPES

__all__ = [
    "ModelCard",
    "ModelDetails",
    "ModelThinking",
    "digest_of",
    "file_bytes_of",
    "read_card",
    "read_details",
    "thinking_of",
]

LARGEST_ARRAY: Final = 64
"""Longer arrays of the metadata, which are vocabularies, are read only where all is asked for."""

_TEMPLATE: Final = "tokenizer.chat_template"
_NO_METADATA: Final[Mapping[str, MetadataValue]] = MappingProxyType({})
_SIMULATED: Final = ("completion", "tools", "thinking", "insert")


class ModelDetails(msgspec.Struct, frozen=True, kw_only=True):
    """In a few words; empty where the file does not say."""

    format: str
    family: str = ""
    parameter_size: str = ""
    quantization_level: str = ""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """At length. ``metadata`` has the file's own keys and values, arrays as lists, or None where they were not read."""

    details: ModelDetails
    capabilities: tuple[str, ...]
    template: str
    license: str | None
    metadata: Mapping[str, Any]
    file_name: str


class ModelThinking(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it thinks before it answers, and whether it can be told how much."""

    thinks: bool
    takes_effort: bool


def read_details(model: ResolvedModel) -> ModelDetails:
    """Of the header as it was read when the registry was."""
    checkpoint = model.checkpoint
    if checkpoint is None:
        if model.spec.format == "sim":
            return ModelDetails(format="sim", family="simulated")
        return ModelDetails(format=model.spec.format)
    return ModelDetails(
        format=checkpoint.format,
        family=checkpoint.architecture,
        parameter_size=_short_count(checkpoint.parameters),
        quantization_level=_quantization(checkpoint),
    )


def read_card(model: ResolvedModel, *, whole: bool = False) -> ModelCard:
    """Reads the vocabulary, and with ``whole`` every array: a blocking call.

    GgufFormatError or OSError when the file is gone, or has changed since its header was read.
    """
    settings = model.request
    metadata = _metadata_of(model)
    template = _template_of(model) or ""
    capabilities = capabilities_of(model.task, template, metadata, calls=settings.tool_syntax is not None)
    license = metadata.get("general.license")
    return ModelCard(
        details=read_details(model),
        capabilities=_SIMULATED if model.spec.format == "sim" and model.task == "text" else capabilities,
        template=template,
        license=license if isinstance(license, str) else None,
        metadata=_facts(model, metadata, whole),
        file_name=Path(model.spec.paths[0]).name if model.spec.paths else "",
    )


def thinking_of(model: ResolvedModel) -> ModelThinking:
    """By its template; a simulated model makes thoughts up."""
    if model.spec.format == "sim":
        return ModelThinking(thinks=True, takes_effort=True)
    template = _template_of(model)
    return ModelThinking(thinks=shows_thinking(template), takes_effort=takes_effort(template))


def _template_of(model: ResolvedModel) -> str | None:
    own = _metadata_of(model).get(_TEMPLATE)
    return model.request.chat_template or (own if isinstance(own, str) else None)


def _metadata_of(model: ResolvedModel) -> Mapping[str, MetadataValue]:
    header = model.checkpoint.header if model.checkpoint is not None else None
    return header.metadata if isinstance(header, GgufHeader) else _NO_METADATA


def digest_of(model: ResolvedModel) -> str:
    """What its content goes by: 64 hexadecimal digits, which change with the file."""
    return hashlib.sha256((model.content_key or model.resident_key).encode()).hexdigest()


def file_bytes_of(model: ResolvedModel) -> int:
    """Of its files; of a simulated one its weights."""
    return model.footprint.static_bytes if model.checkpoint is None else model.checkpoint.file_bytes


def _facts(model: ResolvedModel, metadata: Mapping[str, MetadataValue], whole: bool) -> dict[str, Any]:
    """The file's metadata; where there is none, the keys that clients look for."""
    facts: dict[str, Any] = {
        key: _value(value, whole) for key, value in metadata.items() if not key.startswith(_TEMPLATE)
    }
    family = read_details(model).family
    if family:
        facts.setdefault("general.architecture", family)
    if family and model.footprint.context:
        facts.setdefault(f"{family}.context_length", model.footprint.context)
    if model.checkpoint is not None:
        facts["general.parameter_count"] = model.checkpoint.parameters
    return dict(sorted(facts.items()))


def _value(value: MetadataValue, whole: bool) -> Any:
    if not isinstance(value, GgufArray):
        return value
    return value.tolist() if whole or len(value) <= LARGEST_ARRAY else None


def _quantization(checkpoint: Checkpoint) -> str:
    """What the file calls itself, else the type that most of its bytes are of."""
    header = checkpoint.header
    kind = header.metadata.get("general.file_type") if isinstance(header, GgufHeader) else None
    if isinstance(kind, int) and (name := FILE_TYPES.get(kind)):
        return name
    return next(iter(checkpoint.quant_mix), "")


def _short_count(count: int) -> str:
    """As model names have it: "134.52M", "8B", "7.6B"."""
    for size, unit, places in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if count >= size:
            return f"{count / size:.{places}f}{unit}" if count % size else f"{count // size}{unit}"
    return str(count)
