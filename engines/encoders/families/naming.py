"""What the families share: finding a prefix, checking an activation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from engines.encoders.hf_config import HfConfig
from engines.encoders.shape import ACTIVATIONS
from engines.errors import CheckpointError, UnsupportedModel
from engines.gguf.config import Hyperparameters
from engines.header import GgufHeader, SafetensorsHeader

__all__ = [
    "GGUF_POST_NORM",
    "HF_IGNORED",
    "activation_of",
    "check_types",
    "layer_count",
    "layer_kinds",
    "plain_rope",
    "prefixed",
    "rows_of",
]

GGUF_POST_NORM: Final[Mapping[str, str]] = {
    "words": "token_embd",
    "embedding_norm": "token_embd_norm",
    "joined": "blk.{i}.attn_qkv",
    "query": "blk.{i}.attn_q",
    "key": "blk.{i}.attn_k",
    "value": "blk.{i}.attn_v",
    "output": "blk.{i}.attn_output",
    "after_attention": "blk.{i}.attn_output_norm",
    "up": "blk.{i}.ffn_up",
    "gate": "blk.{i}.ffn_gate",
    "down": "blk.{i}.ffn_down",
    "after_feed_forward": "blk.{i}.layer_output_norm",
}
"""Names of GGUF for layers whose norms stand behind the sums."""

HF_IGNORED: Final = re.compile(r"position_ids$|^(\w+\.)?pooler\.|^cls\.|^lm_head\.|token_type_ids$")
"""What is left of an encoder's checkpoint when it has no head to give: tables of ids, the pooler, the head of pre-training."""


def prefixed(header: SafetensorsHeader, words: str, names: Mapping[str, str]) -> dict[str, str]:
    """``names`` with what stands before the token embedding ``words`` in this file: nothing, ``bert.``, ``model.``, …"""
    ending = f"{words}.weight"
    found = [name for name in header.tensors if name == ending or name.endswith(f".{ending}")]
    if len(found) != 1:
        raise CheckpointError(
            f"{header.paths[0]}: tensor '{ending}' is missing"
            if not found
            else f"{header.paths[0]}: several tensors are named '{ending}'"
        )
    prefix = found[0].removesuffix(ending)
    return {slot: prefix + name for slot, name in names.items()}


def check_types(config: HfConfig, header: SafetensorsHeader, names: dict[str, str]) -> None:
    """Takes token types out of ``names`` where the model has none. CheckpointError when there are not as many as the
    configuration says."""
    name = f"{names['types']}.weight"
    count = config.integer("type_vocab_size", default=0, least=0)
    if name not in header.tensors:
        if count:
            raise CheckpointError(f"{header.paths[0]}: tensor '{name}' is missing, and type_vocab_size is {count}")
        del names["types"]
    elif count and header.tensors[name].shape[:1] != (count,):
        shape = list(header.tensors[name].shape)
        raise CheckpointError(f"{header.paths[0]}: tensor '{name}' is {shape}, and type_vocab_size is {count}")


def layer_kinds(config: HfConfig, count: int) -> list[bool] | None:
    """Which layers see a window only, by ``layer_types``; None where the configuration has none."""
    kinds = config.values.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or not all(kind in ("full_attention", "sliding_attention") for kind in kinds):
        raise config.error("layer_types", "is no list of 'full_attention' and 'sliding_attention'")
    if len(kinds) != count:
        raise config.error("layer_types", f"has {len(kinds)} entries for {count} layers")
    return [kind == "sliding_attention" for kind in kinds]


def rows_of(header: GgufHeader | SafetensorsHeader, name: str) -> int:
    """Rows of a matrix. CheckpointError when it is missing or no matrix."""
    path = header.path if isinstance(header, GgufHeader) else header.paths[0]
    tensor = header.tensors.get(f"{name}.weight")
    if tensor is None or len(tensor.shape) != 2:
        raise CheckpointError(f"{path}: tensor '{name}.weight' is missing, or no matrix")
    return tensor.shape[0]


def layer_count(path: str, count: int, tensors: int) -> int:
    """``count``, once it is believable: it is only a number in the file."""
    if count > tensors:
        raise CheckpointError(f"{path}: {count} layers are announced, with {tensors} tensors")
    return count


def plain_rope(keys: Hyperparameters, head_width: int) -> None:
    """UnsupportedModel where the rotary embedding is of a part of a head, or scaled."""
    if keys.integer("rope.dimension_count", head_width) != head_width:
        raise keys.refusal("rope.dimension_count", f"only {head_width} is supported here")
    if keys.text("rope.scaling.type", "none") not in ("none", ""):
        raise keys.refusal("rope.scaling.type", "only 'none' is supported here")
    keys.expect("rope.scaling.factor", 1.0)


def activation_of(path: str, name: str) -> str:
    """UnsupportedModel for one that is not known."""
    if name not in ACTIVATIONS:
        raise UnsupportedModel(f"{path}: the activation {name!r} is not supported; these are: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
