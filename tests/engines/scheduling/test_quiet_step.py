"""What a step would take alone, learnt from steps on modelled devices."""

from __future__ import annotations

import numpy as np
import pytest

from engines.scheduling.quiet_step import QuietStep


def learnt(steps: int, *, rows: int = 1, start: int = 100, token_s: float = 3e-6, noise: float = 0.0) -> QuietStep:
    """Steps of 10 ms and ``token_s`` a token, whose contexts grow by a token a row."""
    quiet = QuietStep()
    generator = np.random.default_rng(1)
    for step in range(steps):
        tokens = rows * (start + step)
        quiet.observe(rows, tokens, (0.01 + token_s * tokens) * (1 + noise * generator.normal()))
    return quiet


def test_nothing_is_expected_of_so_many_rows_before_they_had_a_step() -> None:
    quiet = learnt(100)
    assert quiet.expected(2, 100) is None
    assert quiet.expected(1, 100) is not None


def test_a_few_steps_tell_no_slope() -> None:
    quiet = learnt(20)
    assert quiet.expected(1, 3000) == quiet.expected(1, 100)


@pytest.mark.parametrize(("rows", "noise", "within"), [(1, 0.0, 0.01), (1, 0.1, 0.15), (8, 0.1, 0.1)])
def test_longer_contexts_are_expected_to_take_longer(rows: int, noise: float, within: float) -> None:
    quiet = learnt(600, rows=rows, noise=noise)
    tokens = rows * 2000
    assert quiet.expected(rows, tokens) == pytest.approx(0.01 + 3e-6 * tokens, rel=within)


def test_the_slope_of_some_rows_serves_others() -> None:
    quiet = learnt(600, rows=1)
    quiet.observe(3, 300, 0.02)
    assert quiet.expected(3, 1300) == pytest.approx(0.02 + 3e-6 * 1000, rel=0.02)


def test_a_device_on_which_contexts_cost_nothing_has_no_slope() -> None:
    quiet = learnt(600, token_s=0.0, noise=0.05)
    assert quiet.expected(1, 5000) == pytest.approx(0.01, rel=0.15)


def test_steps_that_grow_shorter_make_no_slope_below_nothing() -> None:
    quiet = QuietStep()
    for step in range(300):
        quiet.observe(1, step, 0.02 - 1e-5 * step)
    assert quiet.expected(1, 10_000) == quiet.expected(1, 300)


def test_a_step_is_never_expected_to_take_less_than_half_of_the_mean_nor_more_than_its_tokens_explain() -> None:
    quiet = QuietStep()
    for step in range(300):
        quiet.observe(1, 1000 + step, 0.01 + 1e-3 * step)  # a machine that grows slower, and not by the context
    mean = quiet.expected(1, 1299)
    assert mean is not None
    assert quiet.expected(1, 0) == pytest.approx(mean / 2, rel=0.2)
    expected = quiet.expected(1, 2600)
    assert expected is not None and expected <= 2.2 * mean


def test_pauses_of_the_machine_count_little() -> None:
    quiet = learnt(600)
    for _ in range(3):
        quiet.observe(1, 700, 2.0)
    assert quiet.expected(1, 700) == pytest.approx(0.0121, rel=0.1)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_first_step_that_had_kernels_to_compile_counts_nothing(rows: int) -> None:
    quiet = learnt(600) if rows > 1 else QuietStep()
    quiet.observe(rows, rows * 100, 5.0)
    for step in range(100):
        tokens = rows * (100 + step)
        quiet.observe(rows, tokens, 0.01 + 3e-6 * tokens)
    for tokens in (rows * 200, rows * 2000):
        assert quiet.expected(rows, tokens) == pytest.approx(0.01 + 3e-6 * tokens, rel=0.01)


def test_a_pause_among_the_first_steps_counts_little() -> None:
    quiet = QuietStep()
    for step in range(100):
        tokens = 100 + step
        quiet.observe(1, tokens, 1.0 if step == 5 else 0.01 + 3e-6 * tokens)
    assert quiet.expected(1, 200) == pytest.approx(0.0106, rel=0.1)


def test_a_context_that_is_much_longer_at_once_is_no_pause() -> None:
    quiet = learnt(600)
    for step in range(15):  # as a long prompt has been read, and the next comes soon
        tokens = 20_000 + step
        quiet.observe(1, tokens, 0.01 + 3e-6 * tokens)
    assert quiet.expected(1, 20_100) == pytest.approx(0.0703, rel=0.02)


def test_steps_without_a_time_are_no_measure_of_others() -> None:
    quiet = QuietStep()
    for seconds in [0.0] * 50 + [0.01] * 50:
        quiet.observe(1, 0, seconds)
    assert quiet.expected(1, 0) == pytest.approx(0.01)


def test_a_machine_that_has_become_slower_is_believed() -> None:
    quiet = learnt(600, token_s=0.0)
    for step in range(800):
        quiet.observe(1, 700 + step, 0.02)
    assert quiet.expected(1, 1500) == pytest.approx(0.02, rel=0.1)
