"""Which tensor of a GGUF file belongs to which module of the stock model, and that none is missing or left over."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from engines.errors import CheckpointError
from engines.header import GgufHeader, TensorInfo

__all__ = ["EMBEDDING", "HEAD", "ROPE_FREQUENCIES", "Placement", "Slot", "SlotKind", "Transform", "place"]

EMBEDDING: Final = "token_embd"
"""GGUF stem of the token embedding."""

HEAD: Final = "output"
"""GGUF stem of the head; a checkpoint without it has the embedding as its head."""

ROPE_FREQUENCIES: Final = "rope_freqs.weight"

_BLOCK: Final = re.compile(r"blk\.(\d{1,9})\.")

# Rotary tables of early converters: they say what ``rope.freq_base`` says too, and llama.cpp skips them.
_SKIPPED: Final = re.compile(r"blk\.\d+\.attn_rot_embd\.weight|blk\.\d+\.attn\.rot_embd|blk\.\d+\.rot_embd")

Transform = Callable[[Any, Mapping[str, Any]], Any]
"""From a tensor as it lies in the file to what the module needs, with the plan's configuration: (array, config) to an array.

Of quantised weights the array is uint8 blocks, whose last axis must be left alone: rows are taken, reordered, stacked. Of
norms, biases and parameters it is floats. Only methods and operators of the array are needed, so that families stay free of
MLX. ValueError and IndexError say that the tensor's shape does not fit. Ready-made ones are in ``transforms.py``."""


class SlotKind(Enum):
    """What a module does with its weight, and so what takes its place."""

    LINEAR = auto()  # [rows, columns]; of several stems: their products side by side
    EMBEDDING = auto()
    NORM = auto()  # floats; with a bias where the slot says so
    EXPERTS = auto()  # [experts, rows, columns]: SwitchLinear; of several stems: their products side by side
    EXPERTS_APART = auto()  # a stem an expert, each [rows, columns]: SwitchLinear; they are copied together
    HEADS = auto()  # [heads, rows, columns]: MultiLinear
    HEADS_FLIPPED = auto()  # the same, stored the other way around: [heads, columns, rows]
    PARAMETER = auto()  # floats that a module holds itself; ``module`` is then the parameter's whole path


@dataclass(frozen=True)
class Slot:
    """One module of a model, or of each of its blocks when the names hold ``{i}``.

    ``stem`` is the tensor's GGUF name without ``.weight`` (several: one module holds them all, in this order), but the whole
    name for a PARAMETER; ``module`` the path of the stock module. ``bias`` allows a ``stem.bias``. An optional tensor is in all
    blocks or in none. ``only`` names a set of layers of the plan, to which the slot is confined. ``transform`` is applied to
    weight and bias alike; it may be used to take a part of a tensor, of which other slots take the rest. A bias that is allowed
    may be missing, but not that of a norm.
    """

    stem: str | tuple[str, ...]
    module: str
    kind: SlotKind = SlotKind.LINEAR
    bias: bool = False
    optional: bool = False
    only: str | None = None
    transform: Transform | None = None

    @property
    def stems(self) -> tuple[str, ...]:
        """All its stems."""
        return (self.stem,) if isinstance(self.stem, str) else self.stem


@dataclass(frozen=True)
class Placement:
    """A module and the tensors it gets: a weight, and a bias or None, for each stem of the slot."""

    module: str
    kind: SlotKind
    weights: tuple[TensorInfo, ...]
    biases: tuple[TensorInfo | None, ...]
    transform: Transform | None = None

    @property
    def weight(self) -> TensorInfo:
        """The first weight, which is the only one of most."""
        return self.weights[0]

    @property
    def nbytes(self) -> int:
        """Bytes of its weights in the file."""
        return sum(weight.nbytes for weight in self.weights)


def place(
    header: GgufHeader,
    slots: Iterable[Slot],
    blocks: int,
    others: Collection[str] = (),
    *,
    layers: Mapping[str, Collection[int]] | None = None,
    spare: int = 0,
) -> list[Placement]:
    """The placement of every tensor, in the order of the slots.

    ``others`` are names of tensors that the family reads itself. ``layers`` are the sets that slots are confined to. The last
    ``spare`` of the file's blocks, after the ``blocks`` of the model, are left alone with whatever they hold (they predict
    further tokens, say). Raises CheckpointError that names the tensor when one is missing, when one is in only some of the
    blocks, or when the file holds one that no slot takes.
    """
    found = {int(match[1]) for name in header.tensors if (match := _BLOCK.match(name))}
    # Before anything is expanded, since the count is only a number in the file.
    if blocks > len(header.tensors) or max(found, default=-1) >= blocks + spare:
        raise CheckpointError(
            f"{header.path}: block_count says {blocks} blocks, the tensors are of {max(found, default=-1) + 1}"
        )
    sets = layers or {}
    placements = [
        placement
        for slot in slots
        for placement in _fill(header, slot, range(blocks) if slot.only is None else sorted(sets[slot.only]))
    ]
    taken = {info.name for p in placements for info in (*p.weights, *p.biases) if info is not None}
    for name in header.tensors:
        block = _BLOCK.match(name)
        is_spare = block is not None and int(block[1]) >= blocks
        if name not in taken and name not in others and not is_spare and not _SKIPPED.fullmatch(name):
            raise CheckpointError(f"{header.path}: tensor '{name}' has no place in this architecture")
    return placements


def _fill(header: GgufHeader, slot: Slot, blocks: Sequence[int]) -> list[Placement]:
    if "{i}" not in slot.module:
        blocks = [0]
    columns = []  # a stem each: weights and biases of all blocks
    for stem in slot.stems:
        stems = [stem.format(i=i) for i in blocks]
        suffix = "" if slot.kind is SlotKind.PARAMETER else ".weight"
        weights = _tensors(header, [f"{stem}{suffix}" for stem in stems], slot.optional)
        may_lack = slot.kind is not SlotKind.NORM or not any(weights)
        biases = _tensors(header, [f"{stem}.bias" for stem in stems], may_lack) if slot.bias else [None] * len(stems)
        columns.append(list(zip(weights, biases, strict=True)))
    placements = []
    for i, *parts in zip(blocks, *columns, strict=True):
        present = tuple(weight for weight, _ in parts if weight is not None)
        if len(present) == len(parts):
            module = slot.module.format(i=i)
            biases_of = tuple(bias for _, bias in parts)
            placements.append(Placement(module, slot.kind, present, biases_of, slot.transform))
    return placements


def _tensors(header: GgufHeader, names: Sequence[str], optional: bool) -> list[TensorInfo | None]:
    tensors = [header.tensors.get(name) for name in names]
    if optional and not any(tensors):
        return tensors
    for name, tensor in zip(names, tensors, strict=True):
        if tensor is None:
            raise CheckpointError(f"{header.path}: tensor '{name}' is missing")
    return tensors
