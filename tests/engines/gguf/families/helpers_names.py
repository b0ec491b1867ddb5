"""Renames a stock model's weights as the converter does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "matrix_of_convolution", "minus_exp", "renamed"]

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


def matrix_of_convolution(weight: Array) -> Array:
    """[channels, kernel, 1] as mlx-lm has it to [channels, kernel]."""
    return weight[:, :, 0]


def minus_exp(logarithm: Array) -> Array:
    """A of A_log."""
    return -np.exp(logarithm)
