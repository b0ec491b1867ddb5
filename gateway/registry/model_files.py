"""What a model's files say, from their headers alone; and for a simulated model what its entry says.

Files that are missing, damaged or unsupported leave an ``error``, so that the other models serve and a request for this one says
what is wrong.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engines.detect import Checkpoint, detect
from engines.errors import EngineError
from engines.footprint import Footprint, estimate
from engines.header import content_key
from engines.wire import ModelSpec, SimulateSpec
from gateway.errors import GatewayError, ModelLoadFailed
from gateway.machine import Machine
from gateway.registry.family_defaults import NO_FAMILY, family_files, family_layer
from gateway.registry.request_layers import Layer
from gateway.registry.schema import ModelEntry, SimulateSection
from gateway.registry.sources import resolve_source

__all__ = ["ModelFiles", "read_files"]

_UNLIMITED_CONTEXT = 2**31 - 1  # of a simulated model without a context of its own


@dataclass(frozen=True)
class ModelFiles:
    """All that an entry's load keys decide. ``error`` is what a use of the model is answered with."""

    spec: ModelSpec
    content_key: str
    resident_key: str  # ids with the same one share a resident
    footprint: Footprint
    created: int  # seconds since the epoch: the newest file's time, 0 for a simulated model
    watched: tuple[str, ...]  # files that were read, or looked for: another size or time makes all of this out of date
    family: Layer = NO_FAMILY
    checkpoint: Checkpoint | None = None  # None for a simulated model, and where the headers cannot be read
    error: GatewayError | None = None
    task_known: bool = True  # False: neither the entry nor a header says it, and the spec's is a placeholder


def read_files(entry: ModelEntry, directory: Path, machine: Machine) -> ModelFiles:
    """Reads them. ``directory`` is what a relative source is relative to."""
    if entry.simulate is not None:
        return _simulated(entry, entry.simulate)
    path: Path | None = None
    checkpoint: Checkpoint | None = None
    family = NO_FAMILY
    try:
        path = resolve_source(entry.source, directory)
        _check_encodable(path)
        checkpoint = detect(path, entry.task)
        family = family_layer(checkpoint)
        if checkpoint.unsupported is not None:
            raise ModelLoadFailed(f"{path}: {checkpoint.unsupported}", retry=False)
        spec = ModelSpec(
            id=entry.id,
            task=checkpoint.task,
            format=checkpoint.format,
            paths=tuple(str(part) for part in checkpoint.paths),
            context=entry.context,
            concurrency=entry.concurrency,
            scheduling=entry.scheduling.settings,
        )
        key = content_key(checkpoint.header)
        float_bytes = 4 if machine.device == "cpu" else 2  # MLX computes in float32 on the CPU
        footprint = estimate(checkpoint, context=entry.context, float_bytes=float_bytes, cuda=machine.device == "cuda")
        created = int(max(Path(part).stat().st_mtime for part in spec.paths))
    except (GatewayError, EngineError, OSError) as problem:
        return _unusable(entry, path, checkpoint, family, problem)
    return ModelFiles(
        spec=spec,
        content_key=key,
        resident_key=_resident_key(key, spec, entry),
        footprint=footprint,
        created=created,
        watched=(*spec.paths, *family_files(spec.paths, spec.format)),
        family=family,
        checkpoint=checkpoint,
    )


def _simulated(entry: ModelEntry, simulate: SimulateSection) -> ModelFiles:
    spec = ModelSpec(
        id=entry.id,
        task=simulate.task,
        format="sim",
        paths=(),
        context=entry.context,
        concurrency=entry.concurrency,
        scheduling=entry.scheduling.settings,
        simulate=SimulateSpec(
            weights_bytes=int(simulate.weights),
            kv_bytes_per_token=int(simulate.kv_per_token or 0),
            load_s=simulate.load_s,
            ttft_s=simulate.ttft_s,
            tokens_per_s=simulate.tokens_per_s,
            fail_load=simulate.fail_load,
            abort_after_tokens=simulate.abort_after_tokens,
            abort_times=simulate.abort_times,
            hang_after_tokens=simulate.hang_after_tokens,
            hold_memory_s=simulate.hold_memory,
        ),
    )
    key = f"sim:{simulate.content or entry.id}"
    return ModelFiles(
        spec=spec,
        content_key=key,
        resident_key=_resident_key(key, spec, entry),
        footprint=Footprint(
            static_bytes=int(simulate.weights),
            kv_bytes_per_token=int(simulate.kv_per_token or 0),
            transient_bytes=0,
            context=entry.context or _UNLIMITED_CONTEXT,
        ),
        created=0,
        watched=(),
    )


def _check_encodable(path: Path) -> None:
    """ModelLoadFailed for a path that cannot cross to a worker or stand in an answer, which are UTF-8."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise ModelLoadFailed(f"{path.absolute()}: the path is not UTF-8; rename the file or its directory") from None


def _unusable(
    entry: ModelEntry, path: Path | None, checkpoint: Checkpoint | None, family: Layer, problem: Exception
) -> ModelFiles:
    if isinstance(problem, GatewayError):
        error = problem
    else:
        message = problem.message if isinstance(problem, EngineError) else f"{path or entry.source[:200]}: {problem}"
        error = ModelLoadFailed(message)
    paths = () if path is None else (str(path),)
    task = entry.task or (None if checkpoint is None else checkpoint.task)
    return ModelFiles(
        spec=ModelSpec(id=entry.id, task=task or "text", format="gguf", paths=paths),
        content_key="",
        resident_key=f"unusable:{entry.id}",
        footprint=Footprint(static_bytes=0, kv_bytes_per_token=0, transient_bytes=0, context=0),
        created=0,
        watched=paths,
        family=family,
        checkpoint=checkpoint,
        error=error,
        task_known=task is not None,
    )


def _resident_key(content: str, spec: ModelSpec, entry: ModelEntry) -> str:
    """Content and load parameters; not the id, so that ids which differ only in request settings share a resident."""
    parameters = msgspec.structs.replace(spec, id="", paths=())
    grant = None if entry.kv_grant is None else int(entry.kv_grant)  # ByteSize is no type msgspec encodes
    return hashlib.sha256(msgspec.json.encode([content, parameters, grant])).hexdigest()
