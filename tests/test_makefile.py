"""``make install``: when the installer runs, and which back end it is given."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[1] / "Makefile"
INSTALLER = """import pathlib, sys
if sys.argv[2:] == ["none"]: sys.exit(1)
pathlib.Path(sys.argv[1], "bin").mkdir(parents=True, exist_ok=True)
pathlib.Path("log").open("a").write(f"{' '.join(sys.argv[2:])};")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(MAKEFILE, tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "install.py").write_text(INSTALLER)
    return tmp_path


def install(project: Path, *variables: str) -> str:
    """Runs it; what the installer was given each time so far."""
    environment = {name: value for name, value in os.environ.items() if name not in ("BACKEND", "MAKEFLAGS")}
    command = ["make", "install", f"PYTHON={sys.executable}", *variables]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0) == ("BACKEND=none" in variables), done.stderr
    return (project / "log").read_text()


def test_install_runs_again_for_another_back_end_only(project: Path) -> None:
    assert install(project) == ";"
    assert install(project) == ";"
    assert install(project, "BACKEND=cuda12") == ";cuda12;"
    assert install(project, "BACKEND=cuda12") == install(project) == ";cuda12;"
    assert install(project, "BACKEND=none") == install(project) == ";cuda12;"
    assert install(project, "BACKEND=cpu") == ";cuda12;cpu;"
    assert install(project, "BACKEND=cuda12") == ";cuda12;cpu;cuda12;"
    later = (project / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(project / "pyproject.toml", (later, later))
    assert install(project) == ";cuda12;cpu;cuda12;cuda12;"
