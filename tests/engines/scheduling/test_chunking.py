"""Chunks fitted to the time they take, on modelled devices."""

from __future__ import annotations

import pytest

from engines.scheduling.chunking import FIRST_CHUNK, LARGEST_CHUNK, LIMIT_S, TARGET_S, ChunkSize


def settle(chunk: ChunkSize, fixed_s: float, token_s: float, chunks: int = 40) -> list[float]:
    """How long each chunk lasts on a device that needs so long for a pass and for each token."""
    seconds = []
    for _ in range(chunks):
        seconds.append(fixed_s + token_s * chunk.tokens)
        chunk.observe(chunk.tokens, seconds[-1])
    return seconds


@pytest.mark.parametrize(
    ("fixed_s", "token_s"),
    [(0.0, 0.11), (0.0, 0.01), (0.05, 0.002), (0.3, 0.02), (0.54, 0.05), (0.001, 0.0005), (0.8, 0.01)],
)
def test_a_chunk_comes_to_last_about_the_target_and_never_above_a_second(fixed_s: float, token_s: float) -> None:
    seconds = settle(ChunkSize(), fixed_s, token_s)
    assert max(seconds) <= LIMIT_S
    assert seconds[-1] > 0.6 * TARGET_S


def test_a_fast_device_soon_takes_the_largest_chunk() -> None:
    chunk = ChunkSize()
    settle(chunk, 0.001, 0.00001, chunks=6)
    assert chunk.tokens == LARGEST_CHUNK


def test_where_a_single_pass_is_too_long_chunks_still_share_it() -> None:
    """Three seconds a pass: chunks of one token would read nothing, and would not be shorter."""
    chunk = ChunkSize()
    seconds = settle(chunk, 3.0, 0.01)
    assert chunk.tokens > 50
    assert max(seconds) < 4.0


def test_attention_over_a_long_context_shrinks_the_chunk_again() -> None:
    chunk = ChunkSize()
    settle(chunk, 0.01, 0.001)
    before = chunk.tokens
    settle(chunk, 0.01, 0.01)
    assert chunk.tokens < before / 5


def test_a_short_last_chunk_of_a_prompt_does_not_shrink_the_next() -> None:
    chunk = ChunkSize()
    settle(chunk, 0.01, 0.001)
    before = chunk.tokens
    chunk.observe(1, 0.011)
    assert chunk.tokens == before


def test_a_time_of_zero_is_taken() -> None:
    chunk = ChunkSize()
    chunk.observe(chunk.tokens, 0.0)
    assert chunk.tokens > 1


@pytest.mark.parametrize(("fixed_s", "tokens"), [(0.5, 40), (0.69, 40), (0.9, FIRST_CHUNK), (2.0, 40)])
def test_a_device_that_others_take_from_us_does_not_read_token_by_token(fixed_s: float, tokens: int) -> None:
    """A pass was short once, and is long now however few its tokens: what it costs is shared by many all the same."""
    chunk = ChunkSize()
    settle(chunk, 0.01, 0.02)
    seconds = settle(chunk, fixed_s, 0.002, chunks=80)
    assert chunk.tokens >= tokens
    assert max(seconds[1:]) <= max(LIMIT_S, 1.3 * fixed_s)
    chunk.observe(1, 0.03)
    assert max(settle(chunk, 0.01, 0.02)[1:]) <= LIMIT_S


def test_one_pass_that_was_held_up_does_not_make_chunks_long() -> None:
    chunk = ChunkSize()
    settle(chunk, 0.01, 0.02)
    chunk.observe(1, 30.0)
    assert max(settle(chunk, 0.01, 0.02)) <= LIMIT_S


def test_a_shorter_target_makes_shorter_chunks() -> None:
    seconds = settle(ChunkSize(0.1), 0.01, 0.001)
    assert seconds[-1] == pytest.approx(0.1, rel=0.05)
