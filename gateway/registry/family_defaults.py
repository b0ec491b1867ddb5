"""The sampling that a checkpoint's publisher recommends: the lowest level of request settings.

A GGUF file has it in its metadata (keys of the ``gguf`` package's ``Keys.General``), a directory of safetensors in
``generation_config.json`` (Hugging Face's ``GenerationConfig``). What has no counterpart here (mirostat, XTC, ``do_sample``, a
length) is left alone. A value outside the API's range is not used, and ``config check`` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from engines.detect import Checkpoint
from engines.errors import CheckpointError
from engines.header import GgufHeader
from gateway.registry.problems import shorten
from gateway.registry.request_layers import SAMPLING, Layer
from gateway.registry.request_schema import SamplingSection

__all__ = ["NO_FAMILY", "family_files", "family_layer", "unused_family_values"]

_GGUF: Final[Mapping[str, str]] = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
_GENERATION_CONFIG: Final = "generation_config.json"
_MAX_BYTES: Final = 1024**2
_ORIGIN: Final = "family defaults"

NO_FAMILY: Final = Layer(_ORIGIN)
"""Of a simulated model, and of files that cannot be read."""


def family_files(paths: tuple[str, ...], kind: str) -> tuple[str, ...]:
    """Files beside a checkpoint's own that decide its family defaults, whether they exist or not."""
    return (str(Path(paths[0]).parent / _GENERATION_CONFIG),) if kind == "safetensors" and paths else ()


def family_layer(checkpoint: Checkpoint) -> Layer:
    """What the checkpoint recommends, as far as it can be used. CheckpointError for a damaged generation_config.json."""
    usable = [(name, key, value) for name, key, value, wrong in _read(checkpoint) if wrong is None]
    return Layer(
        _ORIGIN,
        {SAMPLING + name: value for name, _, value in usable},
        {SAMPLING + name: key for name, key, _ in usable},
    )


def unused_family_values(checkpoint: Checkpoint) -> list[str]:
    """A sentence for each recommended value that cannot be used."""
    return [f"{key} is {shorten(value)}: {wrong}; not used" for _, key, value, wrong in _read(checkpoint) if wrong]


def _read(checkpoint: Checkpoint) -> Iterator[tuple[str, str, Any, str | None]]:
    """Our name, the file's key, the value, and why it cannot be used."""
    if isinstance(checkpoint.header, GgufHeader):
        given = ((name, key, checkpoint.header.metadata.get(key)) for name, key in _GGUF.items())
    else:
        config = _generation_config(checkpoint)
        given = ((name, f"{_GENERATION_CONFIG}: {name}", config.get(name)) for name in _GGUF)
    for name, key, value in given:
        if value is None:
            continue
        if isinstance(value, float):
            value = float(f"{value:.7g}")  # GGUF holds float32: 0.95 comes as 0.949999988
        try:
            msgspec.convert({name: value}, SamplingSection)
        except msgspec.ValidationError as error:
            yield name, key, value, str(error).partition(" - at")[0].lower()
        else:
            yield name, key, value, None


def _generation_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    (file,) = family_files(checkpoint.paths, checkpoint.format)
    path = Path(file)
    if not path.is_file():
        return {}
    try:
        data = msgspec.json.decode(path.read_bytes()) if path.stat().st_size <= _MAX_BYTES else None
    except (msgspec.DecodeError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: is no JSON object of at most {_MAX_BYTES} bytes")
    return data
