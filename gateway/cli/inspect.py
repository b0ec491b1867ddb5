"""``innkeeper inspect FILE``: what a model file is and whether it runs here, from its header alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from engines.detect import Checkpoint, detect
from engines.errors import UnsupportedModel
from engines.footprint import Footprint, estimate
from gateway.cli.output import print_fields, print_json, print_table, user_path
from gateway.registry.sources import resolve_source
from gateway.registry.values import format_bytes

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``inspect``."""
    parser = subparsers.add_parser(
        "inspect",
        help="say what a model file is and whether it runs",
        description="Reads the header of a model file (or of a directory of safetensors) and says what it is, what it takes"
        " in memory and whether Innkeeper can run it. The weights are not read.",
    )
    parser.add_argument(
        "file", metavar="FILE", help="a path, or a source as in the registry: package:MODULE/FILE, hf:…"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the report. Raises EngineError or GatewayError, whose messages say what is wrong with the file."""
    is_source = args.file.startswith(("package:", "hf:"))
    checkpoint = detect(resolve_source(args.file, Path.cwd()) if is_source else user_path(args.file))
    try:
        footprint = estimate(checkpoint)
    except UnsupportedModel:
        footprint = None  # of an architecture whose metadata is not of the kind we know: the rest can still be told
    if args.json:
        print_json(as_json(checkpoint, footprint))
    else:
        print_report(checkpoint, footprint)
    return 0


def as_json(checkpoint: Checkpoint, footprint: Footprint | None) -> dict[str, object]:
    """The report for programs: sizes in bytes, null where the header does not say."""
    return {
        "name": checkpoint.name,
        "paths": list(checkpoint.paths),
        "format": checkpoint.format,
        "task": checkpoint.task,
        "architecture": checkpoint.architecture,
        "supported": checkpoint.unsupported is None,
        "unsupported": checkpoint.unsupported,
        "parameters": checkpoint.parameters,
        "context": checkpoint.context,
        "vocabulary": checkpoint.vocabulary,
        "tokenizer": checkpoint.tokenizer,
        "chat_template": checkpoint.has_chat_template,
        "file_bytes": checkpoint.file_bytes,
        "static_bytes": footprint and footprint.static_bytes,
        "kv_bytes_per_token": footprint and footprint.kv_bytes_per_token,
        "kv_window_tokens": footprint and footprint.kv_window_tokens,
        "kv_window_bytes_per_token": footprint and footprint.kv_window_bytes_per_token,
        "state_bytes": footprint and footprint.state_bytes,
        "quant_mix": {
            kind: {"tensors": tensors, "bytes": nbytes} for kind, (tensors, nbytes) in checkpoint.quant_mix.items()
        },
    }


def print_report(checkpoint: Checkpoint, footprint: Footprint | None) -> None:
    """The report for people."""
    print_fields(
        [
            ("file", checkpoint.paths[0] + _more(len(checkpoint.paths) - 1)),
            ("name", checkpoint.name),
            ("runs", "yes" if checkpoint.unsupported is None else f"no: {checkpoint.unsupported}"),
            ("task", checkpoint.task),
            ("architecture", f"{checkpoint.architecture} ({checkpoint.format})"),
            ("parameters", _short_count(checkpoint.parameters)),
            ("context", f"{checkpoint.context} tokens" if checkpoint.context else "not said"),
            ("tokenizer", _tokenizer(checkpoint)),
            ("chat template", _chat_template(checkpoint)),
            ("file size", format_bytes(checkpoint.file_bytes)),
            ("in memory", f"about {format_bytes(footprint.static_bytes)}" if footprint else "unknown"),
            ("KV a token", _kv(footprint)),
        ]
    )
    print()
    total = sum(nbytes for _, nbytes in checkpoint.quant_mix.values()) or 1
    print_table(
        ["type", "tensors", "size", "share"],
        [
            [kind, str(tensors), format_bytes(nbytes), f"{100 * nbytes / total:.1f} %"]
            for kind, (tensors, nbytes) in checkpoint.quant_mix.items()
        ],
    )


def _kv(footprint: Footprint | None) -> str:
    if footprint is None:
        return "unknown"
    text = f"{format_bytes(footprint.kv_bytes_per_token)} in float32"
    if footprint.kv_window_tokens:
        text += (
            f", and {format_bytes(footprint.kv_window_bytes_per_token)} for the last"
            f" {footprint.kv_window_tokens} tokens (sliding window)"
        )
    if footprint.state_bytes:
        text += f", and {format_bytes(footprint.state_bytes)} for a row of any length (recurrent state)"
    return text


def _tokenizer(checkpoint: Checkpoint) -> str:
    if checkpoint.tokenizer is None:
        return "none in the file"
    return checkpoint.tokenizer + (f", {checkpoint.vocabulary} tokens" if checkpoint.vocabulary else "")


def _chat_template(checkpoint: Checkpoint) -> str:
    if checkpoint.has_chat_template:
        return "yes"
    return "no: a base model, for /v1/completions" if checkpoint.task == "text" else "no"


def _more(others: int) -> str:
    return f" and {others} more" if others else ""


def _short_count(count: int) -> str:
    for size, unit in ((10**9, "B"), (10**6, "M")):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return str(count)
