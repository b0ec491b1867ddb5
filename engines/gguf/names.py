"""Which tensor of a GGUF file belongs to which module of the stock model, and that none is missing or left over."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from engines.errors import CheckpointError
from engines.header import GgufHeader, TensorInfo

__all__ = ["EMBEDDING", "HEAD", "ROPE_FREQUENCIES", "Placement", "Slot", "SlotKind", "place"]

EMBEDDING: Final = "token_embd"
"""GGUF stem of the token embedding."""

HEAD: Final = "output"
"""GGUF stem of the head; a checkpoint without it has the embedding as its head."""

ROPE_FREQUENCIES: Final = "rope_freqs.weight"

_BLOCK: Final = re.compile(r"blk\.(\d{1,9})\.")

# Rotary tables of early converters: they say what ``rope.freq_base`` says too, and llama.cpp skips them.
_SKIPPED: Final = re.compile(r"blk\.\d+\.attn_rot_embd\.weight|blk\.\d+\.attn\.rot_embd|blk\.\d+\.rot_embd")


class SlotKind(Enum):
    """What a module does with its weight, and so what takes its place."""

    LINEAR = auto()
    EMBEDDING = auto()
    NORM = auto()


@dataclass(frozen=True)
class Slot:
    """One module of a model, or of each of its blocks when the names hold ``{i}``.

    ``stem`` is the tensor's GGUF name without ``.weight``; ``module`` the path of the stock module. ``bias`` allows a
    ``stem.bias``. An optional tensor is in all blocks or in none.
    """

    stem: str
    module: str
    kind: SlotKind = SlotKind.LINEAR
    bias: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Placement:
    """A module and the tensors it gets."""

    module: str
    kind: SlotKind
    weight: TensorInfo
    bias: TensorInfo | None


def place(header: GgufHeader, slots: Iterable[Slot], blocks: int, others: Collection[str] = ()) -> list[Placement]:
    """The placement of every tensor, in the order of the slots.

    ``others`` are names of tensors that the family reads itself. Raises CheckpointError that names the tensor when one is
    missing, when one is in only some of the blocks, or when the file holds one that no slot takes.
    """
    found = {int(match[1]) for name in header.tensors if (match := _BLOCK.match(name))}
    # Before anything is expanded, since the count is only a number in the file.
    if blocks > len(header.tensors) or max(found, default=-1) >= blocks:
        raise CheckpointError(
            f"{header.path}: block_count says {blocks} blocks, the tensors are of {max(found, default=-1) + 1}"
        )
    placements = [placement for slot in slots for placement in _fill(header, slot, range(blocks))]
    taken = {info.name for p in placements for info in (p.weight, p.bias) if info is not None}
    for name in header.tensors:
        if name not in taken and name not in others and not _SKIPPED.fullmatch(name):
            raise CheckpointError(f"{header.path}: tensor '{name}' has no place in this architecture")
    return placements


def _fill(header: GgufHeader, slot: Slot, blocks: Sequence[int]) -> list[Placement]:
    indices = blocks if "{i}" in slot.stem else [0]
    stems = [slot.stem.format(i=i) for i in indices]
    weights = _tensors(header, [f"{stem}.weight" for stem in stems], slot.optional)
    biases = _tensors(header, [f"{stem}.bias" for stem in stems], True) if slot.bias else [None] * len(stems)
    return [
        Placement(slot.module.format(i=i), slot.kind, weight, bias)
        for i, weight, bias in zip(indices, weights, biases, strict=True)
        if weight is not None
    ]


def _tensors(header: GgufHeader, names: Sequence[str], optional: bool) -> list[TensorInfo | None]:
    tensors = [header.tensors.get(name) for name in names]
    if optional and not any(tensors):
        return tensors
    for name, tensor in zip(names, tensors, strict=True):
        if tensor is None:
            raise CheckpointError(f"{header.path}: tensor '{name}' is missing")
    return tensors
