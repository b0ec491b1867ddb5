"""Run as a program with the path of a checkpoint: what a process holds before and after the model is built, as JSON."""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from engines.device import SmapsProbe
from engines.gguf.model import build_model
from engines.header import read_header

__all__: list[str] = []


def _held(probe: SmapsProbe) -> int:
    """Bytes held, without what MLX and the allocator keep for later."""
    mx.clear_cache()
    ctypes.CDLL(None).malloc_trim(0)
    return probe.read()


def main() -> None:
    probe = SmapsProbe()
    mx.eval(mx.ones(4) + 1)
    held: dict[str, Any] = {"empty": _held(probe)}
    header = read_header(sys.argv[1])
    built = build_model(header)
    held["built"] = _held(probe)
    cache = make_prompt_cache(built.model)
    mx.eval(built.model(mx.array([[1, 2, 3, 4, 5]]), cache=cache))
    held["used"] = _held(probe) - sum(layer.nbytes for layer in cache)
    json.dump(held, sys.stdout)


if __name__ == "__main__":
    main()
