from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.scheduling.admission import Decision, KvAdmission, KvCost


@pytest.mark.parametrize(
    ("row", "running", "decision"),
    [
        (100, [], Decision.ADMIT),
        (1024, [], Decision.ADMIT),
        (1025, [], Decision.GROW),
        (256, [256, 256, 256], Decision.ADMIT),
        (257, [256], Decision.ADMIT),
        (257, [256, 256], Decision.WAIT),  # three rows of 512 each: the batch is as long as its longest row
        (1, [257, 257], Decision.WAIT),
        (1024, [1], Decision.WAIT),
    ],
)
def test_a_row_is_decided_by_rows_times_the_longest(row: int, running: list[int], decision: Decision) -> None:
    assert KvAdmission(KvCost(10), grant_bytes=1024 * 10).decide(row, running) is decision


def test_without_a_grant_every_row_is_admitted() -> None:
    admission = KvAdmission(KvCost(10), grant_bytes=None)
    assert admission.decide(10**9, [10**9] * 100) is Decision.ADMIT
    assert admission.longest_row is None


def test_a_model_without_kv_has_no_longest_row() -> None:
    assert KvAdmission(KvCost(0), grant_bytes=1).longest_row is None


def test_a_window_costs_no_more_than_its_tokens() -> None:
    cost = KvCost(10, window_bytes_per_token=30, window_tokens=512)
    assert cost.row_bytes(100) == 256 * 40
    assert cost.row_bytes(512) == 512 * 40
    assert cost.row_bytes(2048) == 2048 * 10 + 512 * 30
    windows_only = KvCost(0, window_bytes_per_token=30, window_tokens=512)
    assert windows_only.longest_row(512 * 30) is None and windows_only.longest_row(512 * 30 - 1) == 256


def test_a_step_attends_over_no_more_than_a_window_where_layers_have_one() -> None:
    assert KvCost(10).attended([700, 700]) == 1400
    cost = KvCost(10, window_bytes_per_token=30, window_tokens=512)
    assert cost.attended([100, 100]) == 200 and cost.attended([512]) == 512
    assert cost.attended([2512]) == 512 + 2000 // 4
    assert KvCost(0, window_bytes_per_token=30, window_tokens=512).attended([9000]) == 512
    assert KvCost(0, state_bytes=1000).attended([9000]) == 0 == cost.attended([])


def test_a_state_is_kept_by_every_row_whatever_its_length() -> None:
    cost = KvCost(10, state_bytes=1000)
    assert (cost.row_bytes(0), cost.row_bytes(1), cost.row_bytes(512)) == (0, 3560, 6120)
    assert cost.longest_row(6119) == 256 and cost.longest_row(999) == 0
    state_only = KvAdmission(KvCost(0, state_bytes=1000), grant_bytes=2000)
    assert state_only.longest_row is None
    assert state_only.decide(10**6, [10**6]) is Decision.ADMIT
    assert state_only.decide(1, [1, 1]) is Decision.WAIT
    assert KvAdmission(KvCost(0, state_bytes=1000), grant_bytes=999).missing(1) == 1


@given(
    grant=st.integers(0, 10**5),
    size=st.integers(0, 50),
    windowed=st.integers(0, 50),
    window=st.sampled_from([0, 8, 256, 300, 512]),
    state=st.sampled_from([0, 1, 700, 5000]),
    row=st.integers(1, 5000),
    running=st.lists(st.integers(1, 5000)),
)
def test_what_is_admitted_fits_and_only_a_larger_grant_helps_the_rest(
    grant: int, size: int, windowed: int, window: int, state: int, row: int, running: list[int]
) -> None:
    admission = KvAdmission(KvCost(size, windowed, window, state), grant)
    decision = admission.decide(row, running)
    if decision is Decision.ADMIT:
        assert admission.projected_bytes([*running, row]) <= grant
    longest = admission.longest_row
    assert (decision is Decision.GROW) == (longest is not None and row > longest)
    missing = admission.missing(row)
    assert (decision is Decision.GROW) == (missing > 0)
    assert KvAdmission(admission.cost, grant + missing).decide(row, []) is Decision.ADMIT


def test_the_copy_the_step_and_the_reserve_count_in_company_only() -> None:
    cost = KvCost(10, layer_bytes_per_token=2)
    admission = KvAdmission(cost, 10 * 1024, transient_bytes=100, reserve_bytes=50)
    assert admission.decide(1024, []) is Decision.ADMIT  # an idle engine takes what its grant holds
    needed = 2 * 512 * 10 + 2 * 512 * 2 + 150
    assert KvAdmission(cost, needed, 100, 50).decide(512, [300]) is Decision.ADMIT
    assert KvAdmission(cost, needed - 1, 100, 50).decide(512, [300]) is Decision.WAIT


def test_batches_are_as_long_as_their_own_longest_row_and_copied_one_at_a_time() -> None:
    admission = KvAdmission(KvCost(1, layer_bytes_per_token=1), 2048 + 3 * 256 + 2048)
    assert admission.fits_cohorts([[2048], [256, 1, 100]])
    assert not admission.fits_cohorts([[2048], [256, 1, 100]], beside=1)
    assert not admission.fits([2048, 256, 1, 100])


def test_the_copy_of_a_window_is_no_longer_than_the_window() -> None:
    assert KvCost(0, 30, 512, layer_bytes_per_token=5).copy_bytes([2000, 10]) == 2 * 512 * 5
    assert KvCost(10, 30, 512, layer_bytes_per_token=5).copy_bytes([2000, 10]) == 2 * 2048 * 5
    assert KvCost(10).copy_bytes([2000]) == KvCost(10, layer_bytes_per_token=5).copy_bytes([]) == 0


def test_a_measured_cost_is_rounded_up() -> None:
    assert KvCost(10, 3, 512, 7, 1).scaled(1.25) == KvCost(13, 4, 512, 9, 2)
    assert KvCost(10).scaled(1.0) == KvCost(10)
