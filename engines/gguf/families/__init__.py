"""Model families: for each GGUF architecture, how its checkpoints become models of mlx-lm's own classes.

One file a family, one entry in one of the tables (``dense``, ``mixtures``, ``hybrids``) that make up :data:`FAMILIES`. A family
is data (which tensor goes to which module) and one function from metadata to a :class:`Plan`: the stock class's configuration,
and the few things the class must be told besides. Data flow::

    GgufHeader ──Hyperparameters──> family.plan ──Plan──┐
        └───────tensor names──────> names.place ────────┴──> model.build_model
"""

from __future__ import annotations

from engines.errors import UnsupportedModel
from engines.gguf.families import dense, hybrids, mixtures
from engines.gguf.families.family import Checkpoint, Family, Plan
from engines.header import GgufHeader

__all__ = ["FAMILIES", "REFUSED", "Checkpoint", "Family", "Plan", "family_of", "refusal_of"]

FAMILIES: dict[str, Family] = {
    family.architecture: family for family in (*dense.FAMILIES, *mixtures.FAMILIES, *hybrids.FAMILIES)
}

REFUSED: dict[str, str] = {**dense.REFUSED, **mixtures.REFUSED, **hybrids.REFUSED}
"""Architectures that are known and cannot be run, with the reason: the rest of a sentence."""


def refusal_of(architecture: str | None) -> str | None:
    """Why this architecture cannot be run; None where it can."""
    if architecture in FAMILIES:
        return None
    if architecture in REFUSED:
        return f"architecture '{architecture}' is not supported: {REFUSED[architecture]}"
    return f"architecture '{architecture}' is not supported; supported are {', '.join(sorted(FAMILIES))}"


def family_of(header: GgufHeader) -> Family:
    """The family of a checkpoint. UnsupportedModel, with the reason or the list of those there are, for any other one."""
    architecture = header.text("general.architecture")
    refusal = refusal_of(architecture)
    if refusal is not None or architecture is None:
        raise UnsupportedModel(f"{header.path}: {refusal}")
    return FAMILIES[architecture]
