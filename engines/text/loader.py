"""Builds the text engine of a GGUF checkpoint: header, model, tokenizer, chat template, engine."""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest

import mlx.core as mx

from engines.device import read_device
from engines.errors import CheckpointError, GgufFormatError
from engines.footprint import estimate
from engines.gguf import kernels
from engines.gguf.kernels.compiling import CompilingBackend
from engines.gguf.model import BuiltModel, build_model
from engines.gguf.tokenizer import GgufTokenizer
from engines.header import GgufHeader, read_header
from engines.interface import EngineInfo, ReportProgress
from engines.scheduling.admission import KvCost
from engines.text.adapt import FusedAttention
from engines.text.attention_shapes import read_usual_prompts
from engines.text.batcher import can_batch
from engines.text.cache_room import layers_at_once
from engines.text.chat_prompt import ChatEncoder
from engines.text.engine import GgufTextEngine
from engines.text.warm_up import warm_up
from engines.wire import LoadModel

__all__ = ["build"]

# Rows decoded together where the registry does not say. A CPU is soon short of arithmetic; a GPU gains from more rows for
# longer than most people have clients.
_CPU_WIDTH = 8
_GPU_WIDTH = 32
_READING = 0.5  # of a load's progress on a GPU: preparing for requests is the rest
_USABLE = 0.95  # of a GPU's memory: the rest is the driver's, and what its allocator cannot join


def build(load: LoadModel, report: ReportProgress) -> GgufTextEngine:
    """The engine of ``load.spec``, on the calling thread, which must make every later call but ``prepare``.

    CheckpointError and UnsupportedModel say which file and what in it.
    """
    spec = load.spec
    header = read_header(spec.paths[0])
    tokenizer = _tokenizer(header)  # first: a file without one is known at once
    chat = ChatEncoder(tokenizer)
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    reading = 1.0 if on_cpu else _READING
    built = build_model(header, lambda done: report(reading * done), dtype=spec.dtype, context=spec.context)
    width = _width(built, spec.concurrency, _CPU_WIDTH if on_cpu else _GPU_WIDTH)
    if not on_cpu:
        if load.cores is not None:
            kernels.set_cores(load.cores)
        device = kernels.backend()
        compiling = device if isinstance(device, CompilingBackend) else None
        with FusedAttention():
            warm_up(built.model, width, lambda done: report(reading + (1 - reading) * done), compiling)
            read_usual_prompts(built.model)
    info = EngineInfo(
        kv_bytes_per_token=built.kv_bytes_per_token,
        context=built.context,
        width=width,
        kernels=kernels.backend_name(),
        device="cpu" if on_cpu else "gpu",
    )
    return GgufTextEngine(
        built.model,
        tokenizer,
        chat,
        tokenizer.eos_ids | chat.end_of_turn_ids(),
        info,
        _kv_cost(built),
        load.grant_bytes,
        scheduling=spec.scheduling,
        transient_bytes=estimate(header, context=spec.context, float_bytes=built.dtype.size).transient_bytes,
        pass_bytes=sum(tensor.nbytes for tensor in header.tensors.values()),
        runs_ahead=kernels.backend().lazy,
        device_headroom=_no_headroom if on_cpu else _device_headroom(),
    )


def _kv_cost(built: BuiltModel) -> KvCost:
    """What a row's caches take; of the layers that are copied at once, those that take most."""
    return KvCost(
        built.kv_bytes_per_token,
        built.kv_window_bytes_per_token,
        built.kv_window_tokens,
        built.state_bytes,
        layer_bytes_per_token=sum(nlargest(layers_at_once(), built.kv_layer_bytes)),
    )


def _no_headroom() -> None:
    """A CPU's memory is the whole machine's: there the grant alone bounds a worker."""


def _device_headroom() -> Callable[[], int | None]:
    """Bytes that a GPU has left beside this worker's arrays; what other processes hold of it is not seen."""
    total = read_device().total_bytes
    if total is None:
        return _no_headroom
    usable = int(total * _USABLE)
    return lambda: max(0, usable - mx.get_active_memory())


def _tokenizer(header: GgufHeader) -> GgufTokenizer:
    """The tokenizer reads metadata and knows no file: here its errors get one."""
    try:
        return GgufTokenizer.from_metadata(header.metadata)
    except GgufFormatError:
        raise
    except CheckpointError as error:
        raise type(error)(f"{header.path}: {error.message}") from error


def _width(built: BuiltModel, concurrency: int | None, default: int) -> int:
    """Rows decoded together: what was asked for, as far as the model's class computes several rows rightly, but one where a
    cache of the model cannot hold several."""
    wanted = concurrency or default
    if built.most_rows is not None:
        wanted = min(wanted, built.most_rows)
    return wanted if can_batch(built.model) else 1
