"""What the families share: finding a prefix, checking an activation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from engines.encoders.shape import ACTIVATIONS
from engines.errors import CheckpointError, UnsupportedModel
from engines.gguf.config import Hyperparameters
from engines.header import GgufHeader, SafetensorsHeader

__all__ = ["GGUF_POST_NORM", "HF_IGNORED", "activation_of", "layer_count", "plain_rope", "prefixed", "rows_of"]

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
