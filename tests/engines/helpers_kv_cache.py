"""Run as a program with the path of a checkpoint and numbers of tokens: what its KV caches take when so full, as JSON.

The caches are filled through their own update, with keys and values of zeros as a model makes them, chunk by chunk and
one token at the end; a short run of the model shows that it makes such. ``held`` is what the process grew by in bytes,
``nbytes`` what the caches say, for a full cache; ``reading`` is ``held`` before that last token.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from engines.device import SmapsProbe, release_unused
from engines.footprint import PREFILL_TOKENS
from engines.gguf.model import BuiltModel, build_model
from engines.header import read_header

__all__: list[str] = []


def _fill(built: BuiltModel, caches: list[Any], tokens: int) -> None:
    shape = (1, built.config["num_key_value_heads"], tokens, built.config["head_dim"])
    for cache in caches:
        zeros = mx.zeros(shape, built.dtype)
        cache.update_and_fetch(zeros, zeros)
        mx.eval(cache.state)


def _held(probe: SmapsProbe) -> int:
    release_unused()
    return probe.read()


def _shapes(caches: list[Any]) -> list[Any]:
    return [(array.shape, str(array.dtype)) for cache in caches for array in (cache.keys, cache.values)]


def main() -> None:
    built = build_model(read_header(sys.argv[1]))
    probe = SmapsProbe()
    real, filled = make_prompt_cache(built.model), make_prompt_cache(built.model)
    mx.eval(built.model(mx.array([[1, 2, 3]]), cache=real))
    _fill(built, filled, 3)
    found: dict[str, Any] = {"real": _shapes(real), "filled": _shapes(filled)}
    del real, filled
    for tokens in map(int, sys.argv[2:]):
        before = _held(probe)
        caches = make_prompt_cache(built.model)
        for start in range(0, tokens - 1, PREFILL_TOKENS):
            _fill(built, caches, min(PREFILL_TOKENS, tokens - 1 - start))
        reading = _held(probe) - before
        _fill(built, caches, 1)
        nbytes = sum(cache.nbytes for cache in caches)
        found[str(tokens)] = {"held": _held(probe) - before, "nbytes": nbytes, "reading": reading}
        del caches
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
