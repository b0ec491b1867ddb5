"""The rules of shapes held to the stock classes: for a case's checkpoint, and for other sizes of the same architecture."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from mlx.utils import tree_flatten

from engines.errors import CheckpointError
from engines.gguf.config import Hyperparameters
from engines.gguf.families import Checkpoint, Family, Plan, family_of
from engines.gguf.families.moe import as_in_file
from engines.gguf.families.shapes import expected_shape, layer_of, widths_of
from engines.gguf.model import stock_model
from engines.gguf.names import SlotKind, place
from engines.header import GgufHeader

__all__ = ["check_rules", "planned"]

SIZES: Final = (
    *("embedding_length", "feed_forward_length", "head_count", "head_count_kv", "key_length", "value_length"),
    *("lora_rank", "dimension_count", "inner_size", "state_size", "group_count", "time_step_rank", "conv_kernel"),
    *("expert_count", "shared_count", "l_cache", "head_dim", "num_inputs", "latent_size", "per_layer_input"),
)
ENDINGS: Final = tuple(f"{size}{suffix}" for size in SIZES for suffix in ("", "_mla", "_swa"))
OTHERS: Final = 2  # other sizes for each checkpoint, of which some make no model


def planned(header: GgufHeader) -> tuple[Family, Plan]:
    """What the gateway makes of a header."""
    family = family_of(header)
    return family, family.plan(Checkpoint(header, Hyperparameters(header.path, family.architecture, header.metadata)))


def check_rules(header: GgufHeader) -> None:
    """Every module that a tensor goes to has a rule, which says the shape that the stock class makes it."""
    _check(header)
    for other in _of_other_sizes(header):
        try:
            _check(other)
        except CheckpointError:  # sizes that do not go together
            continue


def _check(header: GgufHeader) -> None:
    family, plan = planned(header)
    slots = as_in_file(header, plan.slots or family.slots)
    layers = plan.config["num_hidden_layers"]
    placements = place(header, slots, layers, plan.tensors, layers=plan.layers, spare=plan.spare_blocks)
    parameters: Any = tree_flatten(stock_model(header.path, plan, placements).parameters())
    stock = dict(parameters)
    for placement in placements:
        name = placement.module if placement.kind is SlotKind.PARAMETER else f"{placement.module}.weight"
        if name in stock:
            widths = widths_of(plan.config, layer_of(placement.module), family.widths)
            said = expected_shape(placement.module, placement.kind, family.shapes, widths)
            assert said == tuple(stock[name].shape), name


def _of_other_sizes(header: GgufHeader) -> Iterator[GgufHeader]:
    """The header with all sizes in its metadata multiplied, or some of them, and more rows of the embedding."""
    generator = random.Random(header.text("general.architecture"))
    sizes = [key for key, value in header.metadata.items() if key.endswith(ENDINGS) and type(value) is int]
    embedding = header.tensors["token_embd.weight"]
    for number in range(OTHERS):
        factor = generator.choice((2, 3, 4))
        some = sizes if number == 0 else generator.sample(sizes, min(len(sizes), 3))
        metadata = {
            key: value * factor if key in some and isinstance(value, int) else value
            for key, value in header.metadata.items()
        }
        longer = replace(embedding, shape=(embedding.shape[0] * (number + 1), *embedding.shape[1:]))
        yield replace(header, metadata=metadata, tensors={**header.tensors, embedding.name: longer})
