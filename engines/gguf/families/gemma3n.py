"""gemma3n: the text part of Gemma 3n, E2B and E4B.

A token's state is four streams, of which a block computes one and predicts the others; each layer adds an embedding of the token
of its own; the last layers take keys and values of earlier ones, windowed layers those of the last windowed layer. Norms are
stored as they are, without an offset. llama.cpp's runtime has most of the numbers as constants of the two models there are,
which are the defaults here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from engines.errors import CheckpointError
from engines.gguf.config import MAX_CONTEXT
from engines.gguf.families.decoder_slots import GATE_UP, QK_NORMS, QKV, SANDWICH_NORMS, period_of_windows
from engines.gguf.families.family import DECODER, Checkpoint, Family, Plan, decoder_plan
from engines.gguf.names import HEAD, Slot, SlotKind
from engines.gguf.transforms import item

__all__ = ["GEMMA3N", "under"]

_PERIOD: Final = 5  # layers; the last of them attends to everything
_LAYERS_WITH_KV: Final = 20
_STREAMS: Final = 4
_SOFT_TOKENS: Final = 256
_WINDOWED_ROPE_BASE: Final = 10000.0
_MODEL: Final = "model.language_model"
_LAYER: Final = f"{_MODEL}.layers.{{i}}"


def _plan(checkpoint: Checkpoint) -> Plan:
    parameters = checkpoint.parameters
    plan = decoder_plan(checkpoint, "gemma3n", scalings=())
    config = plan.config
    parameters.expect("rope.dimension_count", config["head_dim"])
    parameters.expect("attention.scale", 1.0)
    layers = config["num_hidden_layers"]
    streams = parameters.integer("altup.num_inputs", _STREAMS, least=2, most=64)
    period = period_of_windows(checkpoint, layers, _PERIOD)
    slides = [(layer + 1) % period != 0 for layer in range(layers)]
    shared = _shared_layers(checkpoint, layers)
    if len(set(slides[: layers - shared])) != 2:
        raise parameters.refusal(
            "block_count", "layers with and without windows are needed that have keys of their own"
        )
    window = parameters.integer("attention.sliding_window", most=MAX_CONTEXT)
    text = config | {
        "model_type": "gemma3n_text",
        "sliding_window": window,
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
        "num_kv_shared_layers": shared,
        "rope_local_base_freq": parameters.number("rope.freq_base_swa", _WINDOWED_ROPE_BASE),
        "final_logit_softcapping": parameters.number("final_logit_softcapping", 30.0),
        "activation_sparsity_pattern": _sparsity(checkpoint, layers),
        "hidden_size_per_layer_input": parameters.integer("embedding_length_per_layer_input", 256),
        "vocab_size_per_layer_input": _layers_vocabulary(checkpoint, config["vocab_size"]),
        "altup_num_inputs": streams,
        "altup_active_idx": parameters.integer("altup.active_idx", 0, least=0, most=streams - 1),
        "altup_coef_clip": None,  # weights as they were trained are within it
        "altup_correct_scale": True,
        "laurel_rank": _shape(checkpoint, "blk.0.laurel_r.weight")[1],
    }
    each = 2 * config["num_key_value_heads"] * config["head_dim"]
    return replace(
        plan,
        config=config | {"text_config": text},
        windows=tuple(window if slide else None for slide in slides),
        slots=(*GEMMA3N.slots, *_stream_slots(streams)),
        kv_numbers=(each,) * (layers - shared) + (0,) * shared,
    )


def _shared_layers(checkpoint: Checkpoint, layers: int) -> int:
    """How many of the last layers take keys and values of others: an integer that early conversions wrote as a float."""
    key = "attention.shared_kv_layers"
    shared = checkpoint.parameters.any_number(key, max(layers - _LAYERS_WITH_KV, 0))
    if not (shared.is_integer() and 0 <= shared < layers):
        raise checkpoint.parameters.error(key, f"is {shared:g} of {layers} layers")
    return int(shared)


def _sparsity(checkpoint: Checkpoint, layers: int) -> list[float]:
    """The part of an MLP's features that is cut off, a layer. The file holds the quantile of the normal distribution there."""
    quantiles = checkpoint.parameters.numbers("activation_sparsity_scale", layers)
    if quantiles is None:
        raise checkpoint.parameters.error("activation_sparsity_scale", "is missing")
    return [0.5 * (1 + math.erf(quantile / math.sqrt(2))) for quantile in quantiles]


def _layers_vocabulary(checkpoint: Checkpoint, vocabulary: int) -> int:
    """Rows of the layers' own embeddings: early conversions have none for tokens that stand for images and sound."""
    name = "per_layer_token_embd.weight"
    rows = _shape(checkpoint, name)[0]
    if rows not in (vocabulary, vocabulary - _SOFT_TOKENS):
        raise CheckpointError(f"{checkpoint.header.path}: tensor '{name}' has {rows} rows for {vocabulary} tokens")
    return rows


def _shape(checkpoint: Checkpoint, name: str) -> tuple[int, ...]:
    tensor = checkpoint.header.tensors.get(name)
    if tensor is None or len(tensor.shape) != 2:
        raise CheckpointError(f"{checkpoint.header.path}: tensor '{name}' is missing or not a matrix")
    return tuple(tensor.shape)


def _stream_slots(streams: int) -> tuple[Slot, ...]:
    """The matrices of the streams but the first, which the file has in one tensor."""
    names = (("altup_proj", "altup_projections"), ("altup_unembd_proj", "altup_unembed_projections"))
    return tuple(
        Slot(stem, f"{_MODEL}.{module}.{stream}", transform=item(stream, streams - 1))
        for stem, module in names
        for stream in range(streams - 1)
    )


def _widths(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    return {"pairs_of_streams": int(config["text_config"]["altup_num_inputs"]) ** 2}


def under(module: str, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
    """Slots of ``model``, for a class that has it elsewhere."""
    return tuple(replace(slot, module=module + slot.module.removeprefix("model")) for slot in slots)


GEMMA3N = Family(
    architecture="gemma3n",
    model_type="gemma3n",
    slots=(
        *under(_MODEL, tuple(slot for slot in DECODER if slot.stem != HEAD)),
        *under(_MODEL, (*QKV, *QK_NORMS, *SANDWICH_NORMS, *GATE_UP)),
        Slot("per_layer_token_embd", f"{_MODEL}.embed_tokens_per_layer", SlotKind.EMBEDDING),
        Slot("per_layer_model_proj", f"{_MODEL}.per_layer_model_projection"),
        Slot("per_layer_proj_norm", f"{_MODEL}.per_layer_projection_norm", SlotKind.NORM),
        Slot("blk.{i}.inp_gate", f"{_LAYER}.per_layer_input_gate"),
        Slot("blk.{i}.proj", f"{_LAYER}.per_layer_projection"),
        Slot("blk.{i}.post_norm", f"{_LAYER}.post_per_layer_input_norm", SlotKind.NORM),
        Slot("blk.{i}.altup_correct_scale.weight", f"{_LAYER}.altup.correct_output_scale", SlotKind.PARAMETER),
        # The stock class computes with these weights, not with the modules.
        Slot("blk.{i}.altup_correct_coef.weight", f"{_LAYER}.altup.correction_coefs.weight", SlotKind.PARAMETER),
        Slot("blk.{i}.altup_predict_coef.weight", f"{_LAYER}.altup.prediction_coefs.weight", SlotKind.PARAMETER),
        Slot("blk.{i}.altup_router", f"{_LAYER}.altup.modality_router"),
        Slot("blk.{i}.altup_router_norm", f"{_LAYER}.altup.router_norm", SlotKind.NORM),
        Slot("blk.{i}.laurel_l", f"{_LAYER}.laurel.linear_left"),
        Slot("blk.{i}.laurel_r", f"{_LAYER}.laurel.linear_right"),
        Slot("blk.{i}.laurel_post_norm", f"{_LAYER}.laurel.post_laurel_norm", SlotKind.NORM),
    ),
    plan=_plan,
    shapes={
        "altup_projections.*": ("hidden", "hidden"),
        "altup_unembed_projections.*": ("hidden", "hidden"),
        "correct_output_scale": ("hidden",),
        "correction_coefs.weight": ("altup_num_inputs", "altup_num_inputs"),
        "prediction_coefs.weight": ("pairs_of_streams", "altup_num_inputs"),
        "modality_router": ("altup_num_inputs", "hidden"),
        "linear_left": ("laurel_rank", "hidden"),
        "linear_right": ("hidden", "laurel_rank"),
    },
    widths=_widths,
)
