"""A checkpoint's files opened as an encoder: what both engines' ``build`` begin with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx

from engines.encoders.assembly import assemble, check_left
from engines.encoders.blueprint import Blueprint
from engines.encoders.encoder import Encoder
from engines.encoders.families import blueprint_of
from engines.encoders.hf_config import HfConfig, sentence_limit
from engines.encoders.tokenizer import TextTokenizer, gguf_tokenizer, json_tokenizer
from engines.encoders.weights import Weights, weights_of
from engines.errors import CheckpointError, GgufFormatError, UnsupportedModel
from engines.gguf import kernels
from engines.gguf.model import DTYPES
from engines.header import GgufHeader, SafetensorsHeader, read_header, read_safetensors_header
from engines.interface import EngineInfo, ReportProgress
from engines.wire import LoadModel, ModelSpec

__all__ = ["Opened", "checkpoint_directory", "open_checkpoint", "read_checkpoint_header"]

# Rows in a batch at most where the registry does not say; a batch's tokens are bounded by time and by the grant.
_CPU_ROWS, _GPU_ROWS = 64, 256


@dataclass
class Opened:
    """A checkpoint in memory. ``config`` and ``directory`` are None for a GGUF file; ``keys`` for safetensors."""

    path: str
    header: GgufHeader | SafetensorsHeader
    blueprint: Blueprint
    weights: Weights
    encoder: Encoder
    tokenizer: TextTokenizer
    info: EngineInfo
    config: HfConfig | None = None
    directory: Path | None = None

    @property
    def float_bytes(self) -> int:
        """Of an activation."""
        return self.weights.compute.size

    def finish(self) -> None:
        """Once the head has taken its tensors: CheckpointError that names one which nothing took, or says that not even one
        token would fit."""
        check_left(self.blueprint, self.weights)
        most = sentence_limit(self.directory)
        if most is not None and most < self.info.context:
            self.info = replace(self.info, context=most)
        around = self.tokenizer.single.tokens
        if self.info.context <= around:
            raise CheckpointError(
                f"{self.path}: the longest input is of {self.info.context} tokens, of which {around} are the tokenizer's own"
            )


def open_checkpoint(load: LoadModel, report: ReportProgress) -> Opened:
    """The files of ``load.spec`` as an encoder, on the calling thread, whose MLX streams it is bound to.

    CheckpointError and UnsupportedModel say which file and what in it.
    """
    spec = load.spec
    header = read_checkpoint_header(spec)
    directory = None if isinstance(header, GgufHeader) else checkpoint_directory(spec)
    config = None if directory is None else HfConfig.read(directory)
    blueprint = blueprint_of(header, config)
    tokenizer = _tokenizer(header, directory)
    _check_ids(tokenizer, spec.paths[0], blueprint.shape.vocabulary)
    if spec.context is not None and spec.context < blueprint.shape.context:
        blueprint = replace(blueprint, shape=replace(blueprint.shape, context=spec.context))
    weights = weights_of(header, _compute_dtype(spec, blueprint))
    encoder = assemble(blueprint, weights, report)
    pair = tokenizer.pair
    if pair is not None and encoder.type_count > 1 and pair.second_type >= encoder.type_count:
        raise CheckpointError(
            f"{spec.paths[0]}: the tokenizer has the token type {pair.second_type}, the model {encoder.type_count} types"
        )
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    info = EngineInfo(
        kv_bytes_per_token=0,
        context=blueprint.shape.context,
        width=spec.concurrency or (_CPU_ROWS if on_cpu else _GPU_ROWS),
        kernels=kernels.backend_name(),
        device="cpu" if on_cpu else "gpu",
    )
    return Opened(
        spec.paths[0], header, blueprint, weights, encoder, tokenizer, info, config=config, directory=directory
    )


def _check_ids(tokenizer: TextTokenizer, path: str, vocabulary: int) -> None:
    """CheckpointError for a token that the model has no row for: it would read outside of the table."""
    if tokenizer.vocab_size > vocabulary:
        raise CheckpointError(f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, the model {vocabulary}")
    around = (*tokenizer.single.ids, *(() if tokenizer.pair is None else tokenizer.pair.ids))
    outside = next((id for id in around if not 0 <= id < vocabulary), None)
    if outside is not None:
        raise CheckpointError(
            f"{path}: the tokenizer puts the token {outside} around texts, and the model has {vocabulary} tokens"
        )


def read_checkpoint_header(spec: ModelSpec) -> GgufHeader | SafetensorsHeader:
    """Of the GGUF file, or of the directory's shards."""
    if spec.format == "gguf":
        return read_header(spec.paths[0])
    return read_safetensors_header(checkpoint_directory(spec))


def checkpoint_directory(spec: ModelSpec) -> Path:
    """Where a safetensors checkpoint's files lie."""
    return Path(spec.paths[0]).parent


def _compute_dtype(spec: ModelSpec, blueprint: Blueprint) -> mx.Dtype:
    if spec.dtype is not None:
        if spec.dtype not in DTYPES:
            raise UnsupportedModel(f"dtype '{spec.dtype}' is not supported; supported are {', '.join(DTYPES)}")
        return DTYPES[spec.dtype]
    if mx.default_device().type == mx.DeviceType.cpu:
        return mx.float32
    # Layer norms keep BERT's features small; decoders' grow beyond float16's range.
    return mx.float16 if blueprint.shape.norm == "layer" else mx.bfloat16


def _tokenizer(header: GgufHeader | SafetensorsHeader, directory: Path | None) -> TextTokenizer:
    if not isinstance(header, GgufHeader):
        assert directory is not None
        return json_tokenizer(directory)
    try:
        return gguf_tokenizer(header.metadata)
    except GgufFormatError:
        raise
    except CheckpointError as error:  # the tokenizer reads metadata and knows no file
        raise type(error)(f"{header.path}: {error.message}") from error
