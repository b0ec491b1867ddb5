"""How many bytes a load needs: the KV grant of an entry, and the one worked out from the footprint."""

from __future__ import annotations

from engines.footprint import Footprint
from engines.scheduling.admission import KvCost
from gateway.residency.sizes import Sizes

PLAIN = Footprint(static_bytes=1000, kv_bytes_per_token=10, transient_bytes=0, context=32768)


def test_sizes_an_entrys_own_grant_does_not_shrink() -> None:
    assert Sizes.of(PLAIN, 77, baseline_bytes=5) == Sizes(static=1005, full=77, row=77, floor=77)


def test_sizes_four_rows_of_8192_shrink_to_one_and_to_one_of_2048() -> None:
    assert Sizes.of(PLAIN, None) == Sizes(static=1000, full=4 * 81920, row=81920, floor=20480)


def test_sizes_rows_are_no_longer_than_the_context() -> None:
    short = Footprint(static_bytes=0, kv_bytes_per_token=10, transient_bytes=0, context=1000)
    row = 1024 * 10  # whole steps of the cache
    assert Sizes.of(short, None) == Sizes(static=0, full=4 * row, row=row, floor=row)


def test_sizes_windows_count_up_to_their_tokens() -> None:
    mixed = Footprint(0, 10, 0, 32768, kv_window_tokens=512, kv_window_bytes_per_token=100)
    windowed = 512 * 100
    sizes = Sizes.of(mixed, None)
    assert (sizes.full, sizes.row, sizes.floor) == (
        4 * (81920 + windowed),
        81920 + windowed,
        20480 + windowed,
    )


def test_sizes_a_model_whose_layers_all_slide_has_a_grant_too() -> None:
    sliding = Footprint(0, 0, 0, 32768, kv_window_tokens=1024, kv_window_bytes_per_token=100)
    assert Sizes.of(sliding, None) == Sizes(static=0, full=4 * 102400, row=102400, floor=102400)
    # The worker's own account of the same: such a grant holds rows of any length.
    assert KvCost(0, 100, 1024).longest_row(102400) is None
    assert KvCost(0, 100, 1024).row_bytes(30000) == 102400


def test_sizes_a_worker_fits_the_very_row_it_was_granted() -> None:
    for footprint in (PLAIN, Footprint(0, 10, 0, 32768, 512, 100), Footprint(0, 7, 0, 5000, 300, 3)):
        cost = KvCost(footprint.kv_bytes_per_token, footprint.kv_window_bytes_per_token, footprint.kv_window_tokens)
        sizes = Sizes.of(footprint, None)
        longest = cost.longest_row(sizes.floor)
        assert longest is not None and longest >= min(2048, footprint.context)
        longest = cost.longest_row(sizes.row)
        assert longest is not None and longest >= min(8192, footprint.context)
