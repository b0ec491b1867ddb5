"""Reads a ``config.json``, key by key, with the key in every complaint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.errors import CheckpointError, UnsupportedModel
from engines.safetensors_header import load_json

__all__ = ["CONFIG_BYTES", "HfConfig", "sentence_limit"]

CONFIG_BYTES = 16 << 20
_MOST = 1 << 20


class HfConfig:
    """The mapping, and the file it came from."""

    def __init__(self, path: str, values: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values

    @classmethod
    def read(cls, directory: Path) -> HfConfig:
        """CheckpointError when there is none, or it is no JSON object."""
        path = directory / "config.json"
        if not path.exists():
            raise CheckpointError(f"{directory}: has no config.json")
        return cls(str(path), load_json(path, CONFIG_BYTES))

    def inner(self, key: str) -> HfConfig:
        """A mapping within it; an empty one where there is none."""
        value = self.values.get(key)
        return HfConfig(self.path, value if isinstance(value, dict) else {})

    def integer(self, *keys: str, default: int | None = None, least: int = 1, most: int = _MOST) -> int:
        """Of the first key that is there."""
        value, key = self._first(keys, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, f"is {value!r}, not an integer")
        if not least <= value <= most:
            raise self.error(key, f"is {value}; from {least} to {most} is possible")
        return value

    def number(self, *keys: str, default: float | None = None) -> float:
        """A positive finite number."""
        value, key = self._first(keys, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not (math.isfinite(value) and value > 0):
            raise self.error(key, f"is {value!r}, not a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"is {value!r}, not true or false")
        return value

    def text(self, *keys: str, default: str | None = None) -> str:
        value, key = self._first(keys, default)
        if not isinstance(value, str):
            raise self.error(key, f"is {value!r}, not a string")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings; empty where it is something else."""
        value = self.values.get(key)
        return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def expect(self, key: str, *allowed: object) -> None:
        """UnsupportedModel when the key is there and says something else."""
        value = self.values.get(key)
        if value is not None and value not in allowed:
            raise UnsupportedModel(
                f"{self.path}: {key} is {value!r}; only {' or '.join(map(repr, allowed))} is supported"
            )

    def error(self, key: str, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {key} {what}")

    def _first(self, keys: tuple[str, ...], default: object) -> tuple[Any, str]:
        for key in keys:
            if self.values.get(key) is not None:
                return self.values[key], key
        if default is None:
            raise self.error(keys[0], "is missing")
        return default, keys[0]


def sentence_limit(directory: Path | None) -> int | None:
    """Tokens of the longest text, by ``sentence_bert_config.json`` beside the weights; None where that does not say.
    CheckpointError where it says what cannot be."""
    path = None if directory is None else directory / "sentence_bert_config.json"
    most = load_json(path, CONFIG_BYTES).get("max_seq_length") if path is not None and path.exists() else None
    if most is not None and (type(most) is not int or most < 1):
        raise CheckpointError(f"{path}: max_seq_length is {most!r}, and no number of tokens")
    return most
