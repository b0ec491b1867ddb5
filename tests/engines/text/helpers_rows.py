"""Tiny stock models, and an oracle that continues one row alone, without batches, caches in batch form or our sampler."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from engines.scheduling.admission import KvAdmission, KvCost
from engines.scheduling.pacing import Pacer
from engines.text.batcher import Batcher
from engines.text.row import Row, RowEvent, RowToken
from engines.text.sampling import SamplingParameters, uniforms
from tests.engines.helpers_clock import FakeClock

__all__ = [
    "EOS",
    "GREEDY",
    "VOCABULARY",
    "adjusted",
    "continue_alone",
    "draw",
    "make_batcher",
    "make_row",
    "never",
    "run",
    "stock_model",
    "tokens_of",
]

VOCABULARY = 97
EOS = 96
GREEDY = SamplingParameters(seed=0, temperature=0.0)
WINDOW = 8

_BASE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _BASE | {"model_type": "llama"},
    "qwen3": _BASE | {"model_type": "qwen3"},
    "windowed": _BASE
    | {"model_type": "llama", "layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW},
    "gemma3": _BASE | {"model_type": "gemma3_text", "sliding_window": WINDOW, "sliding_window_pattern": 2},
    "mamba": {
        "model_type": "mamba",
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "state_size": 8,
        "num_hidden_layers": 2,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
    },
}


@cache
def stock_model(name: str) -> Any:
    """A stock mlx-lm model with random float32 weights whose logits are spread, so that no two tokens tie."""
    config = _CONFIGS[name]
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(7)  # of what has one dimension, as mamba's
    model = module.Model(module.ModelArgs.from_dict(config))
    generator = np.random.default_rng(7)

    def spread(value: mx.array) -> mx.array:
        if value.ndim < 2:
            return value
        noise = generator.standard_normal(value.shape).astype(np.float32)
        return mx.array(noise * 1.5 * math.prod(value.shape[1:]) ** -0.5)

    model.update(tree_map(spread, model.parameters()))
    model.eval()
    mx.eval(model.parameters())
    return model


def draw(logits: NDArray[np.float64], parameters: SamplingParameters, position: int) -> int:
    """The sampler's definition, in float64 and by full sorts. logits: (vocabulary,)."""
    if parameters.temperature == 0.0:
        return int(np.argmax(logits))
    scaled = (logits - logits.max()) / parameters.temperature
    kept = np.ones(len(scaled), bool)
    if parameters.top_k:
        kept &= scaled >= np.sort(scaled)[::-1][: parameters.top_k].min()
    weights = np.where(kept, np.exp(scaled), 0.0)
    if parameters.top_p < 1.0:
        descending = np.sort(weights)[::-1]
        needed = parameters.top_p * weights.sum()
        count = 1
        while descending[:count].sum() < needed:
            count += 1
        weights = np.where(weights >= descending[count - 1], weights, 0.0)
    weights = np.where(weights >= parameters.min_p * weights.max(), weights, 0.0)
    return _descend(weights, uniforms(parameters.seed, position), 0, len(weights))


def _descend(weights: NDArray[np.float64], numbers: list[float], begin: int, end: int) -> int:
    """The token drawn from this range: a number chooses a child by its weight, the numbers that are left what is in it."""
    width = 64 ** (len(numbers) - 1)
    children = [weights[start : min(end, start + width)].sum() for start in range(begin, end, width)]
    start = begin + width * int(np.argmax(np.cumsum(children) > numbers[0] * sum(children)))
    return start if width == 1 else _descend(weights, numbers[1:], start, min(end, start + width))


def adjusted(
    logits: NDArray[np.float64], parameters: SamplingParameters, prompt: Sequence[int], answer: Sequence[int]
) -> NDArray[np.float64]:
    """Bias and penalties by their definitions, token for token. logits: (vocabulary,)."""
    changed = logits.copy()
    for token, bias in parameters.logit_bias:
        changed[token] += bias
    for token in {*prompt, *answer}:
        penalty = parameters.repetition_penalty
        changed[token] = changed[token] / penalty if changed[token] > 0 else changed[token] * penalty
    for token in set(answer):
        changed[token] -= answer.count(token) * parameters.frequency_penalty + parameters.presence_penalty
    return changed


def continue_alone(model: Any, row: Row, eos_ids: frozenset[int] = frozenset({EOS})) -> list[int]:
    """The tokens a row must get: plain calls of the model on this row alone, the whole prompt at once."""
    state = make_prompt_cache(model)
    inputs, tokens = list(row.tokens), list[int]()
    while len(tokens) < row.max_tokens:
        logits = model(mx.array([inputs]), cache=state)[0, -1].astype(mx.float32)
        own = adjusted(np.array(logits, np.float64), row.sampling, row.tokens, tokens)
        token = draw(own, row.sampling, len(row.tokens) + len(tokens))
        tokens.append(token)
        if token in eos_ids:
            break
        inputs = [token]
    return tokens


class FixedPacer(Pacer):
    """Chunks of a set size, whatever the clock says."""

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self._fixed_chunk = chunk

    @property
    def chunk_tokens(self) -> int:
        return self._fixed_chunk

    def observe(self, tokens: int, seconds: float) -> None:
        pass


def never(sampling: SamplingParameters, *tokens: int) -> SamplingParameters:
    """The same, but none of these is drawn; so that a row is as long as its test needs, whatever its numbers."""
    return replace(sampling, logit_bias=tuple((token, -99.0) for token in tokens))


def make_row(row_id: int, prompt: Sequence[int], max_tokens: int = 8, sampling: SamplingParameters = GREEDY) -> Row:
    length = len(prompt) + max_tokens
    return Row(row_id, tuple(prompt), max_tokens, least_tokens=length, expected_tokens=length, sampling=sampling)


def make_batcher(
    model: Any,
    *,
    width: int = 4,
    chunk: int = 3,
    bytes_per_token: int = 1,
    grant: int | None = None,
    runs_ahead: bool = True,
    clock: Callable[[], float] | None = None,
    **options: Any,
) -> Batcher:
    """Without a ``clock`` time stands still, however slow the machine is."""
    return Batcher(
        model,
        width=width,
        eos_ids=frozenset({EOS}),
        admission=KvAdmission(KvCost(bytes_per_token), grant),
        pacer=FixedPacer(chunk),
        runs_ahead=runs_ahead,
        clock=FakeClock().now if clock is None else clock,
        **options,
    )


def run(batcher: Batcher, limit: int = 1000) -> list[RowEvent]:
    """All events until the batcher is idle."""
    events: list[RowEvent] = []
    for _ in range(limit):
        if not batcher.busy:
            return events
        events += batcher.step()
    raise AssertionError(f"still busy after {limit} ticks")


def tokens_of(events: Sequence[RowEvent], row_id: int) -> list[int]:
    return [event.token for event in events if isinstance(event, RowToken) and event.id == row_id]
