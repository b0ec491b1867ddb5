"""Reads a checkpoint's hyperparameters, and makes sure that none was overlooked.

A GGUF file describes its arithmetic in metadata keys under its architecture's name (``llama.rope.freq_base``). A family asks a
:class:`Hyperparameters` for those it understands; :meth:`Hyperparameters.finish` then refuses the model if a key is left that
nobody asked for and that is not known to be harmless. So a checkpoint that needs something else is an UnsupportedModel that
names the key, and never a model that answers wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeVar

from engines.errors import CheckpointError, UnsupportedModel
from engines.header import GgufArray, MetadataValue

__all__ = ["Hyperparameters"]

MAX_DIMENSION: Final = 1 << 20  # of one axis of a weight; the widest feed-forward layers known have 2**17
MAX_CONTEXT: Final = (1 << 31) - 1  # positions and windows are 32-bit numbers to MLX
LEAST_NUMBER: Final = 1e-20  # with the other bound, what numbers are multiplied by and divided by stays within float32
MOST_NUMBER: Final = 1e20
LEAST_ROPE_BASE: Final = 1.0 + 1e-3  # its logarithm is divided by; those known are 10000 and more
QUANTIZATION_VERSION: Final = 2  # of ggml's block layouts; files of versions 0 and 1 hold other bits

# Keys that do not change the arithmetic of a text model, whatever their value.
_HARMLESS: Final = frozenset(
    {
        "mm.tokens_per_image",  # of the vision part, which is another file
        "rope.scaling.finetuned",
        "tensor_data_layout",
        "vocab_size",  # read from the embedding's shape
    }
)

# Keys that change nothing at these values, because they are what the stock classes do anyway.
_NEUTRAL: Final[Mapping[str, tuple[MetadataValue, ...]]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_count": (0,),
    "expert_shared_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "use_parallel_residual": (False,),
}

_Number = TypeVar("_Number", int, float)


class Hyperparameters:
    """The metadata under one architecture's prefix, with a record of what was read. Keys are given without the prefix."""

    def __init__(self, path: str, architecture: str, metadata: Mapping[str, MetadataValue]) -> None:
        self._path = path
        self._prefix = f"{architecture}."
        self._metadata = metadata
        self._read: set[str] = set()

    def integer(self, key: str, default: int | None = None, *, least: int = 1, most: int = MAX_DIMENSION) -> int:
        """An integer of this range. CheckpointError when it is absent without a default, of another type, or outside."""
        value = self._value(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, f"is {value!r}, not an integer")
        if not least <= value <= most:
            raise self.error(key, f"is {value}; from {least} to {most} is possible")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number that float32 can compute with. CheckpointError as :meth:`integer`."""
        value = self._value(key)
        if value is None:
            return float(self._default(key, default))
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"is {value!r}, not a number")
        least = LEAST_ROPE_BASE if key.startswith("rope.freq_base") else LEAST_NUMBER
        if not least <= value <= MOST_NUMBER:  # nor if it is NaN
            raise self.error(key, f"is {value}; from {least:g} to {MOST_NUMBER:g} is possible")
        return float(value)

    def any_number(self, key: str, default: float) -> float:
        """Zero, or a number of either sign that float32 can compute with. CheckpointError as :meth:`integer`."""
        value = self._value(key)
        if value is None:
            return float(default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"is {value!r}, not a number")
        if value != 0 and not LEAST_NUMBER <= abs(value) <= MOST_NUMBER:  # nor if it is NaN
            raise self.error(
                key, f"is {value}; 0, or from {LEAST_NUMBER:g} to {MOST_NUMBER:g} of either sign is possible"
            )
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A bool. CheckpointError when it is of another type."""
        value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"is {value!r}, not true or false")
        return value

    def per_layer(
        self, key: str, count: int, default: int | None = None, *, least: int = 0, most: int = MAX_DIMENSION
    ) -> list[int]:
        """An integer of this range for each of ``count`` layers, from an array or from one value for all."""
        values = self.integers(key, count)
        if values is None:
            return [self.integer(key, default, least=least, most=most)] * count
        for value in values:
            if not least <= value <= most:
                raise self.error(key, f"has a {value}; from {least} to {most} is possible")
        return values

    def text(self, key: str, default: str) -> str:
        """A string. CheckpointError when it is of another type."""
        value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(key, f"is {value!r}, not a string")
        return value

    def integers(self, key: str, count: int) -> list[int] | None:
        """An array of ``count`` integers or bools, as integers; None when the key is absent or not an array."""
        value = self._metadata.get(self._prefix + key)
        if not isinstance(value, GgufArray):
            return None
        self._read.add(key)
        numbers = value.integers()
        if len(numbers) < count:
            raise self.error(key, f"has {len(numbers)} elements for {count} layers")
        return numbers[:count]

    def numbers(self, key: str, count: int) -> list[float] | None:
        """An array of ``count`` numbers, which may be infinite; None when the key is absent. CheckpointError for anything else."""
        value = self._metadata.get(self._prefix + key)
        self._read.add(key)
        if value is None:
            return None
        elements = value.tolist() if isinstance(value, GgufArray) else []
        numbers = [each for each in elements if isinstance(each, float) and not math.isnan(each)]
        if len(elements) != count or len(numbers) != count:
            raise self.error(key, f"is not an array of {count} numbers")
        return numbers

    def leave(self, *keys: str) -> None:
        """These keys are read by somebody else, and are no reason to refuse the model."""
        self._read.update(keys)

    def has(self, key: str) -> bool:
        """Whether the key is there; this does not count as reading it."""
        return self._prefix + key in self._metadata

    def expect(self, key: str, value: float) -> None:
        """Refuses the model when the key says something else than this one value, which is what the stock class does."""
        found = self._value(key)
        if found is None or found in _NEUTRAL.get(key, ()):
            return
        if isinstance(found, str | bool) or not math.isclose(found, value, rel_tol=1e-6):
            raise self.refusal(key, f"only {value:g} is supported here")

    def finish(self) -> None:
        """UnsupportedModel for the first key that nobody read and that is not known to be harmless."""
        for full, value in self._metadata.items():
            if not full.startswith(self._prefix):
                continue
            key = full.removeprefix(self._prefix)
            if key in self._read or key in _HARMLESS or value in _NEUTRAL.get(key, ()):
                continue
            raise self.refusal(key, "that is not understood")
        version = self._metadata.get("general.quantization_version", QUANTIZATION_VERSION)
        if version != QUANTIZATION_VERSION:
            raise UnsupportedModel(
                f"{self._path}: general.quantization_version is {version}; only {QUANTIZATION_VERSION} is supported. "
                "Convert the model anew with a current llama.cpp"
            )

    def error(self, key: str, what: str) -> CheckpointError:
        """A CheckpointError about this key: ``… metadata key 'llama.block_count' is 0; …``."""
        return CheckpointError(f"{self._path}: metadata key '{self._prefix}{key}' {what}")

    def refusal(self, key: str, why: str) -> UnsupportedModel:
        """An UnsupportedModel about this key and its value."""
        value = self._metadata.get(self._prefix + key)
        shown = (
            "missing" if value is None else f"an array of {len(value)}" if isinstance(value, GgufArray) else repr(value)
        )
        return UnsupportedModel(f"{self._path}: metadata key '{self._prefix}{key}' is {shown}; {why}")

    def _value(self, key: str) -> str | int | float | bool | None:
        value = self._metadata.get(self._prefix + key)
        self._read.add(key)
        if not isinstance(value, GgufArray):
            return value
        elements = value.tolist()
        # Written a value a layer; the stock classes have one for all layers.
        if not elements or isinstance(elements[0], list) or any(element != elements[0] for element in elements):
            raise self.refusal(key, "values that differ between layers are not supported")
        return elements[0]

    def _default(self, key: str, default: _Number | None) -> _Number:
        if default is None:
            raise self.error(key, "is missing")
        return default
