"""``innkeeper inspect FILE``: what a model file is, whether it runs here, and how much of it fits, from its header alone."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engines.detect import Checkpoint, detect
from engines.errors import UnsupportedModel
from engines.footprint import Footprint, estimate
from engines.inspection import Inspection, inspect_checkpoint
from gateway.cli.fit import Fit, fit_of
from gateway.cli.output import CliError, print_fields, print_json, print_table, user_path
from gateway.machine import Machine, read_machine
from gateway.registry.sources import resolve_source
from gateway.registry.values import ValueProblem, format_bytes, parse_bytes

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]

_WITHOUT_CACHE = (
    "embedding",
    "rerank",
)  # tasks whose texts go through the model whole: no number of them decodes at a time


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``inspect``."""
    parser = subparsers.add_parser(
        "inspect",
        help="say what a model file is, whether it runs and what fits",
        description="Reads the header of a model file (or of a directory of safetensors) and says what it is, whether Innkeeper"
        " can run it or what is missing, what it takes in memory and how many requests of which length fit in this machine."
        " The weights are not read.",
    )
    parser.add_argument(
        "file", metavar="FILE", help="a path, or a source as in the registry: package:MODULE/FILE, hf:…"
    )
    parser.add_argument("--budget", metavar="SIZE", help="memory for models, as 12GiB (default: what auto is here)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the report. Raises EngineError, GatewayError or CliError, whose messages say what is wrong with the file."""
    is_source = args.file.startswith(("package:", "hf:"))
    checkpoint = detect(resolve_source(args.file, Path.cwd()) if is_source else user_path(args.file))
    inspection = inspect_checkpoint(checkpoint)
    machine = read_machine()
    try:
        footprint = estimate(checkpoint, float_bytes=_float_bytes(machine), cuda=machine.device == "cuda")
    except UnsupportedModel:
        footprint = None  # of an architecture whose metadata is not of the kind we know: the rest can still be told
    fit = None if footprint is None else fit_of(footprint, _budget(args.budget, machine))
    if args.json:
        print_json(as_json(checkpoint, inspection, footprint, machine, fit))
    else:
        print_report(checkpoint, inspection, footprint, machine, fit)
    return 0


def as_json(
    checkpoint: Checkpoint,
    inspection: Inspection,
    footprint: Footprint | None,
    machine: Machine,
    fit: Fit | None,
) -> dict[str, object]:
    """The report for programs: sizes in bytes, null where the header does not say."""
    reason = checkpoint.unsupported
    return {
        "name": checkpoint.name,
        "paths": list(checkpoint.paths),
        "format": checkpoint.format,
        "task": checkpoint.task,
        "architecture": checkpoint.architecture,
        "supported": reason is None,
        "unsupported": reason,
        "parameters": checkpoint.parameters,
        "active_parameters": inspection.active_parameters,
        "context": checkpoint.context,
        "vocabulary": checkpoint.vocabulary,
        "tokenizer": checkpoint.tokenizer,
        "tokenizer_model": inspection.tokenizer_model,
        "tokenizer_pre": inspection.tokenizer_pre,
        "chat_template": checkpoint.has_chat_template,
        "chat_templates": list(inspection.templates),
        "license": inspection.license,
        "file_bytes": checkpoint.file_bytes,
        "static_bytes": footprint and footprint.static_bytes,
        "kv_bytes_per_token": footprint and footprint.kv_bytes_per_token,
        "kv_window_tokens": footprint and footprint.kv_window_tokens,
        "kv_window_bytes_per_token": footprint and footprint.kv_window_bytes_per_token,
        "state_bytes": footprint and footprint.state_bytes,
        "quant_mix": {kind: _counted(*counted) for kind, counted in checkpoint.quant_mix.items()},
        "quant_mix_by_role": {
            role: {kind: _counted(*counted) for kind, counted in kinds.items()}
            for role, kinds in inspection.roles.items()
        },
        "machine": {"device": machine.device, "auto_budget_bytes": machine.auto_budget_bytes},
        "fit": fit
        and {
            "budget_bytes": fit.budget_bytes,
            "fits": fit.fits,
            "lengths": [
                {"tokens": length.tokens, "kv_bytes": length.kv_bytes, "rows": length.rows}
                for length in (() if checkpoint.task in _WITHOUT_CACHE else fit.lengths)
            ],
        },
    }


def print_report(
    checkpoint: Checkpoint,
    inspection: Inspection,
    footprint: Footprint | None,
    machine: Machine,
    fit: Fit | None,
) -> None:
    """The report for people."""
    reason = checkpoint.unsupported
    print_fields(
        [
            ("file", checkpoint.paths[0] + _more(len(checkpoint.paths) - 1)),
            ("name", checkpoint.name),
            ("runs", "yes" if reason is None else f"no: {reason}"),
            ("task", checkpoint.task),
            ("architecture", f"{checkpoint.architecture} ({checkpoint.format})"),
            ("parameters", _parameters(checkpoint, inspection)),
            ("context", f"{checkpoint.context} tokens" if checkpoint.context else "not said"),
            ("tokenizer", _tokenizer(checkpoint, inspection)),
            ("chat template", _chat_template(checkpoint, inspection)),
            ("licence", inspection.license or "not said"),
            ("file size", format_bytes(checkpoint.file_bytes)),
            ("in memory", f"about {format_bytes(footprint.static_bytes)}" if footprint else "unknown"),
            _grows(checkpoint, footprint, machine),
            ("fits here", _fits(fit, machine)),
        ]
    )
    total = sum(nbytes for _, nbytes in checkpoint.quant_mix.values()) or 1
    print()
    print_table(
        ["type", "tensors", "size", "share"],
        [
            [kind, str(tensors), format_bytes(nbytes), f"{100 * nbytes / total:.1f} %"]
            for kind, (tensors, nbytes) in checkpoint.quant_mix.items()
        ],
    )
    print()
    print_table(
        ["role", "types", "size", "share"],
        [_role_row(role, kinds, total) for role, kinds in inspection.roles.items()],
    )
    if fit and fit.left_bytes >= 0 and checkpoint.task not in _WITHOUT_CACHE:
        print()
        print_table(
            ["tokens a request", "KV", "requests at a time"],
            [
                [str(length.tokens), format_bytes(length.kv_bytes), "any" if length.rows is None else str(length.rows)]
                for length in fit.lengths
            ],
        )


def _counted(tensors: int, nbytes: int) -> dict[str, int]:
    return {"tensors": tensors, "bytes": nbytes}


def _float_bytes(machine: Machine) -> int:
    return 4 if machine.device == "cpu" else 2  # MLX computes in float32 on the CPU


def _budget(text: str | None, machine: Machine) -> int:
    if text is None:
        return machine.auto_budget_bytes
    try:
        return parse_bytes(text)
    except ValueProblem as problem:
        raise CliError(f"--budget {text}: {problem}") from problem


def _role_row(role: str, kinds: Mapping[str, tuple[int, int]], total: int) -> list[str]:
    nbytes = sum(size for _, size in kinds.values())
    names = ", ".join(f"{kind} ×{tensors}" for kind, (tensors, _) in kinds.items())
    return [role, names, format_bytes(nbytes), f"{100 * nbytes / total:.1f} %"]


def _parameters(checkpoint: Checkpoint, inspection: Inspection) -> str:
    text = _short_count(checkpoint.parameters)
    if inspection.active_parameters < checkpoint.parameters:
        text += f", of which {_short_count(inspection.active_parameters)} compute a token"
    return text


def _grows(checkpoint: Checkpoint, footprint: Footprint | None, machine: Machine) -> tuple[str, str]:
    """What requests take beside the weights."""
    if checkpoint.task not in _WITHOUT_CACHE:
        return "KV a token", _kv(footprint, machine)
    return "activations", "unknown" if footprint is None else f"{format_bytes(footprint.transient_bytes)} a text; no KV"


def _kv(footprint: Footprint | None, machine: Machine) -> str:
    if footprint is None:
        return "unknown"
    text = f"{format_bytes(footprint.kv_bytes_per_token)} in {'float32' if _float_bytes(machine) == 4 else '16 bits'}"
    if footprint.kv_window_tokens:
        text += (
            f", and {format_bytes(footprint.kv_window_bytes_per_token)} for the last"
            f" {footprint.kv_window_tokens} tokens (sliding window)"
        )
    if footprint.state_bytes:
        text += f", and {format_bytes(footprint.state_bytes)} a request, whatever its length"
    return text


def _fits(fit: Fit | None, machine: Machine) -> str:
    if fit is None:
        return "unknown"
    budget = f"{format_bytes(fit.budget_bytes)} for models ({machine.device})"
    if fit.left_bytes < 0:
        return f"no: it takes {format_bytes(-fit.left_bytes)} more than the {budget}"
    if not fit.fits:
        return f"no: beside it there is no room for one request in the {budget}"
    return f"yes: {format_bytes(fit.left_bytes)} are left of {budget}"


def _tokenizer(checkpoint: Checkpoint, inspection: Inspection) -> str:
    if checkpoint.tokenizer is None:
        return "none in the file"
    kind = f", {inspection.tokenizer_model}" if inspection.tokenizer_model else ""
    return checkpoint.tokenizer + kind + (f", {checkpoint.vocabulary} tokens" if checkpoint.vocabulary else "")


def _chat_template(checkpoint: Checkpoint, inspection: Inspection) -> str:
    if checkpoint.has_chat_template:
        return f"yes: {', '.join(inspection.templates)}" if len(inspection.templates) > 1 else "yes"
    return "no: a base model, for /v1/completions" if checkpoint.task == "text" else "no"


def _more(others: int) -> str:
    return f" and {others} more" if others else ""


def _short_count(count: int) -> str:
    for size, unit in ((10**9, "B"), (10**6, "M")):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return str(count)
