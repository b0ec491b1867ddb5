"""``innkeeper doctor``: each check's findings, and the whole as a process."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.cli import doctor, main
from gateway.cli.doctor import Finding, Subject
from gateway.registry.load import load_registry
from gateway.settings import ServerSettings
from tests.engines.helpers_gguf_bytes import small_llama
from tests.gateway.cli.helpers_gateway import innkeeper

GOOD = {"kind": "cpu", "name": "a CPU", "total_bytes": None, "backends": ["mlx-cpu"], "mlx_version": "0.32.4"}


COMPILED = {"backend": "cpu", "variant": "avx2", "threads": 2, "reason": None, "remedy": None}


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[[object, object], None]:
    """Sets what the MLX process and the kernels process say."""

    def say(device: object, kernels: object) -> None:
        def answer(arguments: list[str]) -> tuple[str, str]:
            said = device if arguments == ["-m", "engines.device"] else kernels
            return (said if isinstance(said, str) else json.dumps(said), "last words")

        monkeypatch.setattr(doctor, "_probe", answer)

    return say


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def registry_subject(directory: Path, text: str) -> Subject:
    path = directory / "registry.yaml"
    path.write_text(text)
    registry = load_registry(path)
    return Subject(registry.settings.server, registry)


def findings(check: doctor.Check, subject: Subject | None = None) -> list[Finding]:
    return list(check(subject or Subject(ServerSettings())))


def test_doctor_python_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [finding.status for finding in findings(doctor.check_python)] == ["ok"]
    monkeypatch.setattr("sys.version_info", (3, 14, 0, "final", 0))
    (finding,) = findings(doctor.check_python)
    assert (finding.status, finding.remedy) == ("fail", "install Python 3.11, 3.12 or 3.13 and run `make install`")


def test_doctor_python_on_an_intel_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    (finding,) = findings(doctor.check_python)
    assert (finding.status, finding.remedy) == ("fail", "MLX needs Apple silicon, and an arm64 Python")


def test_doctor_backend(probe: Callable[[object, object], None]) -> None:
    probe(GOOD, COMPILED)
    mlx, kernels = findings(doctor.check_backend)
    assert (mlx.status, mlx.detail) == ("ok", "MLX 0.32.4 on cpu (a CPU)")
    assert (kernels.status, kernels.detail) == ("ok", "cpu (avx2)")


def test_doctor_backend_problems(probe: Callable[[object, object], None]) -> None:
    probe({"error": "MLX has no back end: pip install 'mlx-innkeeper[cpu]'"}, "")
    (mlx,) = findings(doctor.check_backend)
    assert (mlx.status, mlx.detail) == ("fail", "MLX has no back end: pip install 'mlx-innkeeper[cpu]'")
    probe("", "")
    (mlx,) = findings(doctor.check_backend)
    assert (mlx.status, mlx.detail) == ("fail", "MLX cannot be started: last words")
    probe(GOOD, {"backend": "blas", "variant": None, "reason": "no C++ compiler", "remedy": "`make kernels`"})
    kernels = findings(doctor.check_backend)[1]
    assert (kernels.status, kernels.detail, kernels.remedy) == ("warn", "blas: no C++ compiler", "`make kernels`")
    probe({**GOOD, "kind": "cuda", "total_bytes": 80 << 30}, COMPILED)
    assert findings(doctor.check_backend)[0].detail == "MLX 0.32.4 on cuda (a CPU, 80.0 GiB)"
    probe(GOOD, "")
    assert findings(doctor.check_backend)[1].status == "fail"


def test_doctor_registry_and_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.gguf").write_bytes(small_llama())
    text = """
memory: {budget: 1MiB}
models:
  - {id: tiny, source: ./tiny.gguf}
  - {id: gone, source: ./gone.gguf}
  - {id: hub, source: "hf:org/repo/file.gguf"}
  - {id: big, source: "sim:", simulate: {weights: 8GiB}}
"""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    found = {finding.check: finding for finding in findings(doctor.check_registry, registry_subject(tmp_path, text))}
    assert (found["registry"].status, found["registry"].detail) == ("ok", f"{tmp_path}/registry.yaml: 4 models")
    assert found["model tiny"].status == "ok"
    assert found["model gone"].status == "fail"
    assert "no such file" in found["model gone"].detail
    assert found["model hub"].status == "warn"
    assert "hf download org/repo file.gguf" in found["model hub"].detail
    assert found["model big"].detail == "needs 8.0 GiB, the budget is 1.0 MiB"
    assert found["model big"].status == "fail"


def test_doctor_registry_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "registry.yaml"
    path.write_text("server: {prot: 1}\n")
    assert main(["doctor", "--json", "--registry", str(path), "--port", str(free_port())]) == 1
    report = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert report["registry"]["status"] == "fail"
    assert "server.prot: unknown key; did you mean port?" in report["registry"]["detail"]


def test_doctor_port_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_HTTP_S", 0.1)  # what listens there never answers
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        (finding,) = findings(doctor.check_port, Subject(ServerSettings(port=port)))
    assert finding.status == "fail"
    assert "is in use by another program; stop it, or choose another with --port" in finding.detail
    (finding,) = findings(doctor.check_port, Subject(ServerSettings(port=port)))
    assert (finding.status, finding.detail) == ("ok", f"127.0.0.1:{port} is free")


def test_doctor_port_of_a_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_gateway_answers", lambda _server: True)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        (finding,) = findings(doctor.check_port, Subject(ServerSettings(port=port)))
    assert (finding.status, finding.detail) == ("ok", f"a gateway answers at 127.0.0.1:{port}")


def test_doctor_host_without_keys() -> None:
    (finding,) = findings(doctor.check_port, Subject(ServerSettings(host="0.0.0.0", port=0)))
    assert finding.status == "fail"
    assert "Add one under server.api_keys" in finding.detail


def test_doctor_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, state = findings(doctor.check_disk)
    assert (cache.status, state.status) == ("ok", "ok")
    assert cache.detail.startswith(f"{tmp_path}/cache/innkeeper, ")
    assert not (tmp_path / "cache").exists(), "doctor makes no directories"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert findings(doctor.check_disk)[0].status == "fail"


def test_doctor_disk_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_LOW_DISK_BYTES", 1 << 60)
    assert [finding.status for finding in findings(doctor.check_disk)] == ["warn", "warn"]


def test_doctor_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "registry.yaml").write_text(f"server: {{port: {free_port()}}}\nmodels: []\n")
    result = innkeeper("doctor", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    checks = [line.split()[1] for line in result.stdout.splitlines()[1:]]
    assert checks == ["python", "mlx", "kernels", "registry", "port", "cores", "memory", "cache", "state"]


def test_doctor_as_a_process_with_two_back_ends(tmp_path: Path) -> None:
    """A second back end's metadata on the path is all that its installation looks like from outside."""
    information = tmp_path / "packages" / "mlx_cuda_12-0.32.4.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mlx-cuda-12\nVersion: 0.32.4\n")
    result = innkeeper("doctor", "--port", str(free_port()), cwd=tmp_path, PYTHONPATH=str(tmp_path / "packages"))
    assert result.returncode == 1
    assert "fail  mlx" in result.stdout
    assert "pip uninstall -y mlx-cpu && pip install --force-reinstall --no-deps mlx-cuda-12" in result.stdout
    assert "warn  registry" in result.stdout
