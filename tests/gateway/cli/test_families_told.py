"""What ``inspect`` and ``config check`` say of a checkpoint of each family is what the build does with it: for those that run and
for each way of being refused, with the same reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.errors import CheckpointError
from engines.ggml_types import GgmlType
from engines.gguf.families import FAMILIES, REFUSED
from engines.gguf.model import BuiltModel, build_model
from engines.gguf.quants import QUANT_TYPES
from engines.gguf.writer import CheckpointTensor, CheckpointValue, write_checkpoint
from engines.header import read_header
from gateway.cli import main
from gateway.machine import Machine
from tests.engines.gguf.families.helpers_family import Case, floats_of, write_case
from tests.engines.gguf.families.helpers_served import TOKENIZER
from tests.engines.gguf.families.table import cases
from tests.engines.helpers_gguf_bytes import WHOLE_LLAMA, Tensor, small_llama

GIB = 1024**3
CASES = cases()
WHOLE = [case for case in CASES if not case.light]
NORM = ("F32", np.ones(8, np.float32))


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cli.inspect.read_machine", lambda: Machine("cpu", 10 * GIB, 10 * GIB, 2))


@dataclass(frozen=True)
class Told:
    """What each of the three says: None where it runs."""

    inspect: str | None
    check: str | None
    build: str | None


class Asking:
    """Asks all three about files."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.report: dict[str, Any] = {}  # of inspect, on the last file
        self.built: BuiltModel | None = None

    def __call__(self, *paths: Path) -> list[Told]:
        registry = paths[0].with_suffix(".yaml")
        models = (f"{{id: m{index}, source: {path}}}" for index, path in enumerate(paths))
        registry.write_text(f"models: [{', '.join(models)}]")
        status = main(["config", "check", "--json", "--registry", str(registry)])
        problems = {problem["key"]: problem["message"] for problem in self._json()["problems"]}
        assert status == bool(problems)
        return [
            Told(self._inspect(path), _bare(path, problems.get(f"models[{index}].source")), self._build(path))
            for index, path in enumerate(paths)
        ]

    def agreed(self, *paths: Path) -> list[str]:
        """The reasons, on each of which all three agree."""
        reasons = []
        for told in self(*paths):
            assert told.build is not None, "it was built"
            assert told == Told(told.build, told.build, told.build)
            reasons.append(told.build)
        return reasons

    def _inspect(self, path: Path) -> str | None:
        assert main(["inspect", "--json", str(path)]) == 0
        self.report = self._json()
        reason: str | None = self.report["unsupported"]
        assert self.report["supported"] is (reason is None)
        return reason

    def _build(self, path: Path) -> str | None:
        self.built = None
        try:
            self.built = build_model(read_header(path))
        except CheckpointError as error:
            return _bare(path, error.message)
        return None

    def _json(self) -> Any:
        return json.loads(self._capsys.readouterr().out)


def _bare(path: Path, message: str | None) -> str | None:
    return None if message is None else message.removeprefix(f"{path}: ")


@pytest.fixture
def asking(capsys: pytest.CaptureFixture[str]) -> Asking:
    return Asking(capsys)


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_checkpoint_that_runs_is_told_to(case: Case, asking: Asking, tmp_path: Path) -> None:
    _, tensors = floats_of(case)
    assert asking(write_case(tmp_path / "m.gguf", case, tensors, tokenizer=TOKENIZER)) == [Told(None, None, None)]
    report, built = asking.report, asking.built
    assert built is not None
    assert (report["architecture"], report["context"]) == (case.architecture, built.context)
    assert report["kv_bytes_per_token"] == built.kv_bytes_per_token
    assert report["kv_window_bytes_per_token"] == built.kv_window_bytes_per_token
    assert report["state_bytes"] == built.state_bytes
    assert report["parameters"] == sum(data.size for _, data in tensors.values())
    assert (report["active_parameters"] < report["parameters"]) == (case.metadata.get("expert_count", 0) not in (0, 1))


@pytest.mark.parametrize("case", WHOLE, ids=[case.id for case in WHOLE])
def test_checkpoint_with_something_wrong_is_told_as_the_build_refuses_it(
    case: Case, asking: Asking, tmp_path: Path
) -> None:
    _, tensors = floats_of(case)
    norm = next(name for name in tensors if name.startswith("blk.0.") and name.endswith("norm.weight"))

    def written(name: str, tensors: Mapping[str, CheckpointTensor], without: str = "", **more: CheckpointValue) -> Path:
        metadata = {key: value for key, value in case.metadata.items() if key != without}
        return write_case(tmp_path / name, replace(case, metadata=metadata), tensors, more, tokenizer=TOKENIZER)

    renamed, misshapen, left_over, odd, *missing = asking.agreed(
        written("renamed.gguf", {f"{name}s" if name == norm else name: value for name, value in tensors.items()}),
        written("misshapen.gguf", {**tensors, norm: ("F32", np.ones((3, 5), np.float32))}),
        written("left_over.gguf", tensors | {"blk.0.odd.weight": NORM}),
        written("odd.gguf", tensors, some_twist=0.5),
        *(written(f"without_{index}.gguf", tensors, key) for index, key in enumerate(case.required)),
    )
    assert f"'{norm}" in renamed
    assert f"'{norm}' " in misshapen and "[3, 5]" in misshapen
    assert "'blk.0.odd.weight'" in left_over
    assert f"'{case.architecture}.some_twist'" in odd
    for key, reason in zip(case.required, missing, strict=True):
        assert f"'{case.architecture}.{key}'" in reason


@pytest.mark.parametrize("architecture", [*sorted(REFUSED), "quux"])
def test_architecture_that_cannot_be_run_is_told_with_its_reason(
    architecture: str, asking: Asking, tmp_path: Path
) -> None:
    path = write_checkpoint(tmp_path / "m.gguf", architecture, {}, {"token_embd.weight": NORM}, TOKENIZER)
    (reason,) = asking.agreed(path)
    assert reason.startswith(f"architecture '{architecture}' is not supported")
    assert REFUSED.get(architecture, ", ".join(sorted(FAMILIES))) in reason


def test_types_that_cannot_be_computed_with_are_told_by_name(asking: Asking, tmp_path: Path) -> None:
    known = {quant.name for quant in QUANT_TYPES}
    odd = next(kind for kind in GgmlType if kind.name not in known and kind.block_size == 32)
    tensors = [Tensor(each.name, each.dims, odd) if "ffn_up" in str(each.name) else each for each in WHOLE_LLAMA]
    path = tmp_path / "m.gguf"
    path.write_bytes(small_llama(tensors=tensors))
    (told,) = asking(path)
    for reason in (told.inspect, told.check, told.build):
        assert reason is not None and odd.name in reason
