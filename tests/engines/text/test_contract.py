"""What the batcher uses of mlx-lm beyond its public interface. A new version must pass here before the pin moves."""

from __future__ import annotations

import inspect
from copy import deepcopy
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import GenerationBatch, PromptProcessingBatch, StopSequences
from mlx_lm.models import base, cache

from engines.scheduling.admission import KV_STEP
from tests.engines.text.helpers_rows import stock_model

PINNED = "0.32.2"


def prompt_batch(**fields: Any) -> PromptProcessingBatch:
    model = stock_model("llama")
    return PromptProcessingBatch(
        model, [5], [cache.make_prompt_cache(model)], tokens=[[]], stop_sequences=[StopSequences([[7]])], **fields
    )


def test_mlx_lm_is_the_version_the_batcher_was_written_against() -> None:
    assert version("mlx-lm") == PINNED


def test_a_generation_batch_takes_what_a_prompt_batch_holds() -> None:
    assert list(inspect.signature(GenerationBatch.__init__).parameters)[1:] == [
        "model",
        "uids",
        "inputs",
        "prompt_cache",
        "tokens",
        "samplers",
        "fallback_sampler",
        "logits_processors",
        "stop_sequences",
        "max_tokens",
    ]
    batch = prompt_batch()
    batch.prompt([[1, 2, 3]])
    assert batch.tokens == [[1, 2, 3]]
    assert batch.uids == [5]
    for name in ("prompt_cache", "samplers", "fallback_sampler", "logits_processors", "stop_sequences", "max_tokens"):
        assert hasattr(batch, name), name


def test_a_prompt_batch_merges_no_caches_when_given_none() -> None:
    model = stock_model("llama")
    assert PromptProcessingBatch(model, [1], [], tokens=[[]]).prompt_cache == []


def test_the_step_is_overridden_by_name_and_runs_one_token_ahead() -> None:
    """``_step``, ``_next_tokens``, ``_next_logprobs`` and ``extract_cache``: used by ``__init__``, ``next`` and ``extend``."""
    calls, counted = list[Any](), list[list[int]]()

    class Recorder(GenerationBatch):
        def _step(self) -> tuple[list[int], list[Any]]:
            assert len(self._num_tokens) == len(self.max_tokens)
            counted.append(list(self._num_tokens))
            calls.append((self._next_tokens.tolist(), self._next_logprobs, [list(t) for t in self.tokens]))
            drawn = self._next_tokens.tolist()
            self._next_tokens = mx.array([token + 1 for token in drawn], dtype=mx.uint32)  # type: ignore[operator,union-attr]
            self._next_logprobs = [None] * len(drawn)  # type: ignore[arg-type]
            return drawn, self._next_logprobs  # type: ignore[return-value]

        def extract_cache(self, idx: int) -> list[Any]:
            return []

    def make(uid: int, token: int) -> Recorder:
        source = prompt_batch()
        return Recorder(
            source.model,
            [uid],
            mx.array([token], dtype=mx.uint32),
            source.prompt_cache,
            [[0]],
            [None],  # type: ignore[list-item]
            source.fallback_sampler,
            [[]],
            source.stop_sequences,
            [3],
        )

    batch = make(1, 4)
    assert calls == [([4], [], [[0]])]
    batch.extend(make(2, 10))  # type: ignore[no-untyped-call]
    assert batch.uids == [1, 2]
    first = batch.next()
    assert [(r.uid, r.token, r.finish_reason) for r in first] == [(1, 5, None), (2, 11, None)]
    second = batch.next()
    assert [(r.uid, r.token, r.finish_reason) for r in second] == [(1, 6, None), (2, 12, None)]
    third = batch.next()  # row 1 draws its stop token, row 2 reaches max_tokens
    assert [(r.uid, r.token, r.finish_reason) for r in third] == [(1, 7, "stop"), (2, 13, "length")]
    assert batch.uids == []
    assert counted == [[0], [0], [0, 0], [1, 1], [2, 2]]  # _num_tokens: tokens reported before the step


def test_filter_and_extend_keep_samplers_in_the_rows_order() -> None:
    source = inspect.getsource(GenerationBatch.filter) + inspect.getsource(GenerationBatch.extend)
    assert "self.samplers = [self.samplers[idx] for idx in keep]" in source
    assert "self.samplers.extend(batch.samplers)" in source


def test_caches_that_merge_are_told_by_the_attribute() -> None:
    for merges in (cache.KVCache, cache.RotatingKVCache, cache.ArraysCache, cache.CacheList):
        assert hasattr(merges, "merge"), merges
    for single in (cache.QuantizedKVCache, cache.ChunkedKVCache, cache.ConcatenateKVCache):
        assert not hasattr(single, "merge"), single


def test_caches_grow_in_the_steps_that_admission_rounds_to() -> None:
    assert cache.KVCache.step == cache.BatchKVCache.step == cache.BatchRotatingKVCache.step == KV_STEP


def test_batch_caches_say_where_they_stand() -> None:
    """``keys``, ``values``, ``_idx``; of a window ``max_size``, ``rotated``, ``left_padding``: what cache_room moves and cuts."""
    made: Any
    for made in (cache.BatchKVCache([0]), cache.BatchRotatingKVCache(4, [0])):
        assert made._idx == 0
        made.update_and_fetch(mx.zeros((1, 1, 3, 2)), mx.zeros((1, 1, 3, 2)))
        assert made._idx == 3 and made.keys.shape == made.values.shape and made.left_padding.tolist() == [0]
    assert (made.max_size, made.rotated) == (4, False)
    trim = inspect.getsource(cache.BatchRotatingKVCache)
    assert "trim_size = self._idx - self.max_size + 1" in trim and "if self.keys.shape[2] > self._idx:" in trim


@pytest.mark.parametrize("name", ["llama", "windowed", "mamba"])
def test_a_cache_is_copied_and_its_row_taken_several_times(name: str) -> None:
    """``deepcopy`` and ``filter`` with a row more than once: what siblings start with, untouched by each other."""
    model = stock_model(name)
    batch = PromptProcessingBatch(model, [5], [cache.make_prompt_cache(model)], tokens=[[]])
    batch.prompt([[1, 2, 3]])
    copies = deepcopy(batch.prompt_cache)
    for copied in copies:
        copied.filter([0, 0, 0])
    own = model(mx.array([[4]]), cache=batch.prompt_cache)
    shared = model(mx.array([[4], [9], [4]]), cache=copies)
    assert mx.allclose(shared[0], own[0], atol=1e-5) and mx.allclose(shared[2], own[0], atol=1e-5)
    assert not mx.allclose(shared[1], own[0], atol=1e-2)


def test_attention_is_called_through_the_one_attribute_that_can_be_replaced() -> None:
    assert "mx.fast.scaled_dot_product_attention(" in inspect.getsource(base.scaled_dot_product_attention)
