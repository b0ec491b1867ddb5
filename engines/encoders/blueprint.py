"""What a family knows of a checkpoint before any tensor is read. Without MLX: the gateway asks, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from engines.encoders.shape import Shape

__all__ = ["Blueprint"]


@dataclass(frozen=True)
class Blueprint:
    """Shape and names.

    Attributes:
        architecture: as the file names it.
        shape: the arithmetic.
        names: slot → tensor name, without ``.weight``; ``{i}`` is the layer. A slot that is not named is not there.
        absent: slots that a layer may lack.
        ignored: tensors that no slot takes and that change nothing.
        expert_count: of a mixture.
        biased: every matrix and norm of the layers has a bias.
    """

    architecture: str
    shape: Shape
    names: Mapping[str, str]
    absent: frozenset[str] = frozenset()
    ignored: re.Pattern[str] | None = None
    expert_count: int = 0
    biased: bool = False
