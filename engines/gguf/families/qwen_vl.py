"""qwen2vl, qwen3vl and qwen3vlmoe: the text part of Qwen 2-VL, 2.5-VL and 3-VL, which is Qwen 2's and Qwen 3's.

Their rotary embedding has a position of its own for time, height and width; in text all three are the same, and so is the
rotation. What images are fed into early layers is no matter of text either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engines.gguf.families.family import Checkpoint, Family, Plan
from engines.gguf.families.qwen2 import QWEN2
from engines.gguf.families.qwen3 import QWEN3
from engines.gguf.families.qwen3moe import QWEN3MOE

__all__ = ["QWEN2VL", "QWEN3VL", "QWEN3VLMOE", "text_of"]

_SECTIONS = 3  # time, height, width


def text_of(family: Family, architecture: str) -> Family:
    """The family of a vision model's text part, which is this one."""
    return replace(family, architecture=architecture, plan=_text(family.plan))


def _text(plan: Callable[[Checkpoint], Plan]) -> Callable[[Checkpoint], Plan]:
    def planned(checkpoint: Checkpoint) -> Plan:
        checkpoint.parameters.integers("rope.dimension_sections", _SECTIONS)
        checkpoint.parameters.integer("n_deepstack_layers", 0, least=0)
        return plan(checkpoint)

    return planned


QWEN2VL = text_of(QWEN2, "qwen2vl")
QWEN3VL = text_of(QWEN3, "qwen3vl")
QWEN3VLMOE = text_of(QWEN3MOE, "qwen3vlmoe")
