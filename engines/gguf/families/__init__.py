"""Model families: for each GGUF architecture, how its checkpoints become models of mlx-lm's own classes.

One file a family, one entry in :data:`FAMILIES`. A family is data (which tensor goes to which module) and one function from
metadata to a :class:`Plan`: the stock class's configuration, and the few things the class must be told besides. Data flow::

    GgufHeader ──Hyperparameters──> family.plan ──Plan──┐
        └───────tensor names──────> names.place ────────┴──> model.build_model
"""

from __future__ import annotations

from engines.errors import UnsupportedModel
from engines.gguf.families.family import Checkpoint, Family, Plan
from engines.gguf.families.gemma3 import GEMMA3
from engines.gguf.families.llama import LLAMA
from engines.gguf.families.phi3 import PHI3
from engines.gguf.families.qwen2 import QWEN2
from engines.gguf.families.qwen3 import QWEN3
from engines.header import GgufHeader

__all__ = ["FAMILIES", "Checkpoint", "Family", "Plan", "family_of"]

FAMILIES: dict[str, Family] = {family.architecture: family for family in (LLAMA, QWEN2, QWEN3, GEMMA3, PHI3)}


def family_of(header: GgufHeader) -> Family:
    """The family of a checkpoint. UnsupportedModel, with the list of those there are, for any other architecture."""
    architecture = header.text("general.architecture")
    family = FAMILIES.get(architecture or "")
    if family is None:
        raise UnsupportedModel(
            f"{header.path}: architecture '{architecture}' is not supported; supported are {', '.join(FAMILIES)}"
        )
    return family
