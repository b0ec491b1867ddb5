"""Renames a stock model's weights as the converter does, by gguf-py's own map of Hugging Face's names where that has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import gguf
import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "by_map", "matrix_of_convolution", "minus_exp", "renamed"]

Array = NDArray[np.float32]

_BLOCK = re.compile(r"(?:model|backbone)\.layers\.(\d+)\.(.+)")


def renamed(weights: Mapping[str, Array], names: Mapping[str, str]) -> Iterator[tuple[str, str, Array]]:
    """Each weight with its GGUF name and, for the converter's arithmetic, what of its own name follows the layer's number.

    ``names`` goes from the latter to what follows the block's number. KeyError for a weight that it does not name.
    """
    for name, value in weights.items():
        match = _BLOCK.fullmatch(name)
        if match is None:
            yield names[name], name, value
        else:
            yield f"blk.{match[1]}.{names[match[2]]}", match[2], value


def by_map(architecture: gguf.MODEL_ARCH, layers: int, name: str) -> str:
    """The GGUF name of a Hugging Face name."""
    found = gguf.get_tensor_name_map(architecture, layers).get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def matrix_of_convolution(weight: Array) -> Array:
    """[channels, kernel, 1] as mlx-lm has it to [channels, kernel]."""
    return weight[:, :, 0]


def minus_exp(logarithm: Array) -> Array:
    """A of A_log."""
    return -np.exp(logarithm)
