"""What llama.cpp made of the tests' checkpoints: logits after their last token, recorded where it was built, compared everywhere.

``python -m tests.engines.gguf.families.recorded FOLDER`` (of llama.cpp's sources with a build in ``build/bin``) records all cases
anew in ``recorded.txt``: one a line, its name and 96 float16 in base64. Cases that llama.cpp cannot load, or answers otherwise, are
left out and printed with the reason. A case that is changed later fails until it is recorded anew, or its line is taken out.
"""

from __future__ import annotations

import base64
import functools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

__all__ = ["FARTHEST", "recordings"]

FARTHEST: Final = 1e-2  # in spreads of the logits: llama.cpp looks up GELU in tables of float16
_FILE: Final = Path(__file__).with_suffix(".txt")


@functools.cache
def recordings() -> dict[str, NDArray[np.float32]]:
    """By the id of the case."""
    lines = (line.split() for line in _FILE.read_text(encoding="ascii").splitlines())
    return {name: np.frombuffer(base64.b64decode(text), np.float16).astype(np.float32) for name, text in lines}


def record(sources: Path) -> None:
    """Writes the file."""
    from tests.engines.gguf.families.llama_cpp import compiled, logits_of_both
    from tests.engines.gguf.families.table import cases

    mx.set_default_device(mx.cpu)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(sources, Path(folder))
        for case in cases():
            try:
                ours, theirs = logits_of_both(case, program, Path(folder))
            except subprocess.CalledProcessError as error:
                reasons = [line for line in error.stderr.splitlines() if "error" in line] or ["it ended"]
                sys.stdout.write(f"{case.id}: {reasons[0]}\n")
                continue
            apart = float(np.abs(ours[-1] - theirs[-1]).max() / theirs.std())
            if apart < FARTHEST / 2:
                lines.append(f"{case.id} {base64.b64encode(theirs[-1].astype(np.float16).tobytes()).decode()}")
            else:
                sys.stdout.write(f"{case.id}: {apart:.1e} apart\n")
    _FILE.write_text("\n".join(sorted(lines)) + "\n", encoding="ascii")


if __name__ == "__main__":
    record(Path(sys.argv[1]).resolve())
