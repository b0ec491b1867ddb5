"""The tests' checkpoints given to llama.cpp itself: that what the tests write is what its converter would, and is computed so.

``python -m tests.engines.gguf.families.llama_cpp FOLDER [NAME...]`` takes the folder of llama.cpp's sources with a build in
``build/bin`` (of shared libraries), and the names of test files without ``test_``, else all. It prints, for each case, how far its
logits are from ours, in spreads of theirs. No part of the suite, which cannot count on a build.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np

from engines.gguf.model import build_model
from engines.header import read_header
from tests.engines.gguf import families as package
from tests.engines.gguf.families.helpers_family import (
    PROMPT,
    STEPS,
    VOCABULARY,
    Array,
    Case,
    floats_of,
    logits_of,
    tokens,
    write_case,
)

SOURCE = Path(__file__).with_suffix(".cpp")


def main(sources: Path, names: list[str]) -> None:
    """Prints a line a case."""
    mx.set_default_device(mx.cpu)
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(sources, Path(folder))
        for case in [case for name in names or all_names() for case in cases_of(name)]:
            sys.stdout.write(f"{case.id}: {compared(case, program, Path(folder))}\n")
            sys.stdout.flush()


def all_names() -> list[str]:
    modules = [module.name for module in pkgutil.iter_modules(package.__path__)]
    return [name.removeprefix("test_") for name in modules if name.startswith("test_")]


def cases_of(name: str) -> list[Case]:
    return list(getattr(importlib.import_module(f"{package.__name__}.test_{name}"), "CASES", []))


def compiled(sources: Path, folder: Path) -> Path:
    """The program that prints llama.cpp's logits."""
    program, libraries = folder / "logits", sources / "build" / "bin"
    includes = [f"-I{sources / part}" for part in ("include", "ggml/include")]
    linked = [f"-L{libraries}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}"]
    subprocess.run(["c++", "-O1", "-std=c++17", *includes, str(SOURCE), "-o", str(program), *linked], check=True)
    return program


def compared(case: Case, program: Path, folder: Path) -> str:
    """How far apart the logits are, or why llama.cpp does not load the file."""
    try:
        ours, theirs = logits_of_both(case, program, folder)
    except subprocess.CalledProcessError as error:
        errors = [line for line in error.stderr.splitlines() if "error" in line] or ["it ended"]
        return f"llama.cpp does not run it: {errors[0]}"
    same = (ours.argmax(-1) == theirs.argmax(-1)).mean()
    return f"{np.abs(ours - theirs).max() / theirs.std():.1e}, {same:.0%} of the greedy choices"


def logits_of_both(case: Case, program: Path, folder: Path) -> tuple[Array, Array]:
    """Ours and llama.cpp's, of a prompt and the tokens after it: [tokens, vocabulary]. CalledProcessError where it fails."""
    path, out = folder / "case.gguf", folder / "logits.bin"
    write_case(path, case, floats_of(case)[1], {"vocab_size": VOCABULARY})
    ids = tokens(PROMPT + STEPS)
    texts = [str(token) for token in np.array(ids)[0]]
    subprocess.run([program, path, out, str(PROMPT), *texts], capture_output=True, text=True, check=True)
    theirs = np.fromfile(out, np.float32).reshape(PROMPT + STEPS, -1)
    return logits_of(build_model(read_header(path)).model, ids, (PROMPT,)), theirs


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
