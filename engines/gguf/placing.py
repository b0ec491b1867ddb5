"""Where all of a checkpoint's tensors go, or why they do not fit: what the gateway asks of a file's header, and the build too."""

from __future__ import annotations

from engines.gguf.families import Family, Plan
from engines.gguf.families.moe import as_in_file, shared_as_told
from engines.gguf.families.shapes import widths_of
from engines.gguf.names import Placement, place
from engines.gguf.shape_check import check_shapes
from engines.header import GgufHeader

__all__ = ["placed"]


def placed(header: GgufHeader, family: Family, plan: Plan) -> list[Placement]:
    """The placement of every tensor, in the order of the slots.

    CheckpointError that names the tensor when one is missing, has no place, or is not of the shape that the metadata makes it.
    """
    shared = widths_of(plan.config, 0, family.widths)["shared_experts"]
    slots = shared_as_told(as_in_file(header, plan.slots or family.slots), shared)
    layers = plan.config["num_hidden_layers"]
    placements = place(header, slots, layers, plan.tensors, layers=plan.layers, spare=plan.spare_blocks)
    check_shapes(header, family, plan, placements)
    return placements
