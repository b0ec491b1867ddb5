"""``innkeeper serve`` as a process: what it refuses to start with, and a gateway that the other commands talk to."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli import main
from tests.engines.helpers_gguf_bytes import small_llama
from tests.gateway.cli.helpers_gateway import BOUND_S, environment, innkeeper

READY = "Innkeeper is ready at "
REGISTRY = """
models:
  - {id: sim, source: "sim:", aliases: [default], simulate: {weights: 1MiB}}
  - {id: vectors, source: "sim:", simulate: {weights: 1MiB, task: embedding}}
"""


@contextlib.contextmanager
def serving(*args: str, cwd: Path, bound_s: float = 4 * BOUND_S) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A running gateway: its URL and its process, which is killed after ``bound_s``."""
    command = [sys.executable, "-m", "gateway.cli", "serve", "--port", "0", *args]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=cwd, env=environment("unused")
    ) as process:
        assert process.stdout is not None
        alarm = threading.Timer(bound_s, process.kill)
        alarm.start()
        try:
            url = next((line.removeprefix(READY).strip() for line in process.stdout if line.startswith(READY)), None)
            assert url is not None, f"the gateway ended with {process.wait()} before it was ready"
            yield url, process
        finally:
            alarm.cancel()
            process.kill()


def test_serve_without_a_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve"]) == 1
    assert capsys.readouterr().err == (
        f"innkeeper: there is no registry.yaml in {tmp_path}: name one with --registry FILE, or serve one model with --model FILE\n"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--registry", "gone.yaml"], "gone.yaml: cannot be read: No such file or directory"),
        (["--registry", "bad.yaml"], "bad.yaml: models[0]: "),
        (
            ["--registry", "pins.yaml"],
            "pins.yaml: models[0].pin: the pinned models need at least 2.0 GiB (2147483648 bytes)",
        ),
        (["--registry", "good.yaml", "--host", "0.0.0.0"], "Add one under server.api_keys in the registry file"),
        (["--registry", "good.yaml", "--host", "no such host"], "is not an address of this machine"),
        (["--model", "gone.gguf"], "gone.gguf: no such file"),
        (["--model", "cut.gguf"], "(an incomplete download?)"),
        (["--model", "bloom.gguf"], "'bloom' is not supported"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_serve_refuses_to_start(
    args: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "good.yaml").write_text(REGISTRY)
    (tmp_path / "bad.yaml").write_text("models: [{source: 'sim:'}]\n")
    (tmp_path / "pins.yaml").write_text(
        "memory: {budget: 1GiB}\nmodels: [{id: a, source: 'sim:', simulate: {weights: 2GiB}, pin: true}]\n"
    )
    (tmp_path / "cut.gguf").write_bytes(small_llama()[:-100])
    (tmp_path / "bloom.gguf").write_bytes(small_llama().replace(b"llama", b"bloom"))
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *args]) == 1
    error = capsys.readouterr().err
    assert error.startswith("innkeeper: ")
    assert error.count("\n") == 1
    assert message in error


def test_serve_with_a_port_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "registry.yaml").write_text(REGISTRY)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert main(["serve", "--registry", str(tmp_path / "registry.yaml"), "--port", str(port)]) == 1
    assert f"127.0.0.1 port {port} is in use by another program; stop it" in capsys.readouterr().err


@pytest.mark.parametrize("args", [["--port", "65536"], ["--port", "-1"], ["--registry", "a", "--model", "b"]])
def test_serve_wrong_usage(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", *args])
    assert caught.value.code == 2
    assert "innkeeper serve: error: argument --" in capsys.readouterr().err


def test_serve_models_and_chat_together(tmp_path: Path) -> None:
    (tmp_path / "registry.yaml").write_text(REGISTRY)
    with serving(cwd=tmp_path) as (url, process):
        models = innkeeper("models", url=url)
        assert [line.split()[0] for line in models.stdout.splitlines()] == ["id", "sim", "vectors"]
        chat = innkeeper("chat", "--max-tokens", "3", url=url, stdin="hello")
        assert (chat.stdout.split(), chat.stderr, chat.returncode) == (["w0", "w1", "w2"], "", 0)
        unknown = innkeeper("chat", "nobody", url=url, stdin="hello")
        assert unknown.returncode == 1
        assert "the registry has: sim, vectors" in unknown.stderr
        wrong_kind = innkeeper("chat", "vectors", url=url, stdin="hello")
        assert wrong_kind.returncode == 1
        assert "sim" in wrong_kind.stderr
        doctor = innkeeper("doctor", "--port", url.rpartition(":")[2], url=url, cwd=tmp_path)
        assert f"a gateway answers at {url.removeprefix('http://')}" in doctor.stdout
        process.send_signal(signal.SIGTERM)
        assert process.wait(BOUND_S) == 0


def test_serve_one_model_file(tmp_path: Path) -> None:
    (tmp_path / "My Model.Q4_0.gguf").write_bytes(small_llama())
    with serving("--model", "My Model.Q4_0.gguf", cwd=tmp_path) as (url, process):
        models = innkeeper("models", url=url)
        assert models.stdout.splitlines()[1].split()[:3] == ["My-Model.Q4_0", "text", "2048"]
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND_S) == 0
