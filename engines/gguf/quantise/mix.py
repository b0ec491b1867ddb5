"""Which tensor gets which type: the mixes that are named after their usual type, as ``Q4_K_M``. Pure functions of names.

A mix gives most matrices its base type, and spends more bits where errors cost most: on the output matrix (the embedding where
that serves as output too), on attention's value projections and on the feed-forward's down projections, the latter two more in
the first and the last eighth of the layers and in every third between. Norms, vectors, routers, positions and other small
tensors stay as they are. A row that is no whole number of blocks gets a type with blocks of 32 instead, or at last F16.

Source: ``llama_tensor_get_type_impl``, ``tensor_allows_quantization`` and ``tensor_type_fallback`` of llama.cpp's
llama-quant.cpp, without an importance matrix.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from engines.errors import UnsupportedModel
from engines.ggml_types import GgmlType

__all__ = ["MIXES", "Mix", "MixedModel", "find_mix", "keeps_type", "tensor_types"]


@dataclass(frozen=True)
class Mix:
    """``base`` is the type of most matrices, ``file_type`` the number under ``general.file_type``."""

    name: str
    base: GgmlType
    file_type: int


@dataclass(frozen=True)
class MixedModel:
    """What a mix depends on besides the tensors' names and shapes."""

    architecture: str
    layers: int
    experts: int = 0  # of a mixture-of-experts layer; 0 for a dense model
    grouping: int = 1  # query heads for each key-value head, in the first layer
    grouped: bool = False  # whether there are fewer key-value heads than heads


MIXES: Final[Mapping[str, Mix]] = MappingProxyType(
    {
        name: Mix(name, base, file_type)
        for name, base, file_type in (
            ("Q2_K", GgmlType.Q2_K, 10),
            ("Q3_K_S", GgmlType.Q3_K, 11),
            ("Q3_K_M", GgmlType.Q3_K, 12),
            ("Q3_K_L", GgmlType.Q3_K, 13),
            ("Q4_K_S", GgmlType.Q4_K, 14),
            ("Q4_K_M", GgmlType.Q4_K, 15),
            ("Q5_K_S", GgmlType.Q5_K, 16),
            ("Q5_K_M", GgmlType.Q5_K, 17),
            ("Q6_K", GgmlType.Q6_K, 18),
            ("Q4_0", GgmlType.Q4_0, 2),
            ("Q4_1", GgmlType.Q4_1, 3),
            ("Q5_0", GgmlType.Q5_0, 8),
            ("Q5_1", GgmlType.Q5_1, 9),
            ("Q8_0", GgmlType.Q8_0, 7),
            ("F16", GgmlType.F16, 1),
            ("BF16", GgmlType.BF16, 32),
            ("F32", GgmlType.F32, 0),
        )
    }
)
"""Every mix. Q2_K_S is not among them: its format asks for an importance matrix."""

_OWN_RULES: Final = frozenset({"falcon", "glm5-next"})
_DEEP_GROUPED: Final = MappingProxyType({"qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68})
_FALLBACK: Final[Mapping[GgmlType, GgmlType]] = MappingProxyType(
    {
        GgmlType.Q2_K: GgmlType.Q4_0,
        GgmlType.Q3_K: GgmlType.Q4_0,
        GgmlType.Q4_K: GgmlType.Q5_0,
        GgmlType.Q5_K: GgmlType.Q5_1,
        GgmlType.Q6_K: GgmlType.Q8_0,
    }
)
_FLOATS: Final = frozenset({GgmlType.F16, GgmlType.BF16, GgmlType.F32})
_EMBEDDINGS: Final = frozenset({"token_embd.weight", "per_layer_token_embd.weight"})
_KEPT: Final = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|ffn_gate_tid2eid\.weight|altup|laurel|per_layer_model_proj"
    r"|^(?:position_embd|token_types)\.weight$"
    r"|ssm_conv1d|shortconv\.conv\.weight|indexer\.[kq]_proj\.weight"
    r"|time_mix_(?:first|w[012]|v[012]|a[012]|g[12]|decay_w[12]|lerp_fused)\.weight"
    r"|attn_rel_b\.weight|\.position_embd|sam\.(?:pos_embd|neck\.|net_)|\.rel_pos|\.patch_(?:embd|merger)"
    r"|a\.rvq\.codebook|mm\.a\.code_embd"
)
_LAYER: Final = re.compile(r"blk\.(\d+)\.")


def find_mix(name: str) -> Mix:
    """The mix of this name. UnsupportedModel, with the list of names, for any other."""
    mix = MIXES.get(name)
    if mix is None:
        raise UnsupportedModel(f"the mix {name!r} is not known; these are: {', '.join(MIXES)}")
    return mix


def tensor_types(mix_name: str, model: MixedModel, tensors: Mapping[str, tuple[int, ...]]) -> dict[str, GgmlType]:
    """The types of the tensors to be quantised, by name; tensors that are not in the answer stay as they are.

    ``tensors`` has row-major shapes (out, in). UnsupportedModel for an unknown mix, and for architectures that the reference
    has rules of their own for.
    """
    mix = find_mix(mix_name)
    chosen = [name for name in _in_order(tensors) if not keeps_type(name, tensors[name])]
    if mix.base in _FLOATS:
        return dict.fromkeys(chosen, mix.base)
    if model.architecture in _OWN_RULES:
        raise UnsupportedModel(f"the mixes have rules of their own for {model.architecture}, which are not implemented")
    rules = _Rules(mix, model, tensors)
    return {name: fitting(rules.choose(name), tensors[name][-1]) for name in chosen}


def keeps_type(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is never quantised: a vector, or one whose name says that it is small or delicate."""
    dimensions = len(shape) - next((i for i, size in enumerate(shape) if size > 1), len(shape))
    return dimensions < 2 or not name.endswith("weight") or _KEPT.search(name) is not None


def fitting(kind: GgmlType, columns: int) -> GgmlType:
    """``kind`` where whole blocks of it make a row of ``columns`` weights, else what stands in for it."""
    if columns % kind.block_size:
        kind = _FALLBACK.get(kind, kind)
    return GgmlType.F16 if columns % kind.block_size else kind


def _in_order(names: Mapping[str, object]) -> list[str]:
    """Names in the reference's order, on which the count of value projections depends: outside the layers, layer by layer."""
    return sorted(names, key=lambda name: (int(found[1]) if (found := _LAYER.match(name)) else -1, name))


class _Rules:
    """The choice for one tensor after another, in order: value and down projections are counted as they come by."""

    def __init__(self, mix: Mix, model: MixedModel, tensors: Mapping[str, tuple[int, ...]]) -> None:
        self._mix, self._model, self._tensors = mix, model, tensors
        self._tied = "output.weight" not in tensors
        self._value_count = sum(_is_value(name) for name in tensors)
        self._values, self._downs = itertools.count(), itertools.count()

    def choose(self, name: str) -> GgmlType:
        base = self._mix.base
        if name == "output.weight" or (self._tied and name in _EMBEDDINGS):
            if self._tensors[name][-1] % base.block_size:
                return GgmlType.Q8_0
            return base if base is GgmlType.Q8_0 else GgmlType.Q6_K
        if name in _EMBEDDINGS:
            return base
        if _is_value(name):
            return self._value(next(self._values))
        if "attn_k.weight" in name:
            return GgmlType.Q8_0 if self._model.experts == 8 else base
        if "attn_q.weight" in name:
            return base
        if "attn_output.weight" in name:
            return self._attention_output()
        if "ffn_down" in name:
            return self._down(name, next(self._downs))
        return base

    def _value(self, at: int) -> GgmlType:
        model, kind = self._model, self._mix.base
        match self._mix.name:
            case "Q2_K":
                kind = GgmlType.Q4_K if model.grouping >= 4 else GgmlType.Q3_K
            case "Q3_K_M":
                kind = GgmlType.Q5_K if at < 2 else GgmlType.Q4_K
            case "Q3_K_L":
                kind = GgmlType.Q5_K
            case "Q4_K_S" if at < 4:
                kind = GgmlType.Q5_K
            case "Q4_K_M" | "Q5_K_M" if _more_bits(at, self._value_count):
                kind = GgmlType.Q6_K
        if _is_70b(model) and kind in (GgmlType.Q3_K, GgmlType.Q4_K):
            kind = GgmlType.Q5_K  # its value projections are small: eight heads share them
        return GgmlType.Q8_0 if model.experts == 8 else kind

    def _attention_output(self) -> GgmlType:
        if self._model.experts == 8:
            many = self._mix.name in ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M")
            return GgmlType.Q5_K if many else self._mix.base
        raised = {"Q2_K": GgmlType.Q3_K, "Q3_K_M": GgmlType.Q4_K, "Q3_K_L": GgmlType.Q5_K}
        return raised.get(self._mix.name, self._mix.base)

    def _down(self, name: str, at: int) -> GgmlType:
        layers = self._model.layers
        found = _LAYER.match(name)
        if self._model.experts > 1 and found:
            at = int(found[1])  # a layer may have several down projections, or none
        match self._mix.name:
            case "Q2_K":
                return GgmlType.Q3_K
            case "Q3_K_M":
                return GgmlType.Q5_K if at < layers // 16 else GgmlType.Q4_K
            case "Q3_K_L":
                return GgmlType.Q5_K
            case "Q4_K_S" if at < layers // 8:
                return GgmlType.Q5_K
            case "Q4_K_M" | "Q5_K_M" if _more_bits(at, layers):
                return GgmlType.Q6_K
        return self._mix.base


def _more_bits(at: int, total: int) -> bool:
    eighth = total // 8
    return at < eighth or at >= 7 * total // 8 or (at - eighth) % 3 == 2


def _is_value(name: str) -> bool:
    if name == "output.weight" or name in _EMBEDDINGS:
        return False
    return "attn_qkv.weight" in name or "attn_kv_b.weight" in name or "attn_v.weight" in name


def _is_70b(model: MixedModel) -> bool:
    if model.architecture == "llama":
        return model.layers == 80 and model.grouped
    return model.layers == _DEEP_GROUPED.get(model.architecture)
