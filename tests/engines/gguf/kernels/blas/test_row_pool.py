import threading

import pytest

from engines.gguf.kernels.blas.row_pool import RowPool, usable_cores


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [1, 2, 7, 100])
@pytest.mark.parametrize("least", [0, 1, 5, 1000])
def test_parts_make_up_the_rows(cores: int, rows: int, least: int) -> None:
    pool, parts = RowPool(cores), list[tuple[int, int]]()
    pool.run(lambda start, stop: parts.append((start, stop)), rows, least)
    pool.close()
    parts.sort()
    assert [row for start, stop in parts for row in range(start, stop)] == list(range(rows))
    assert len(parts) <= cores
    assert len(parts) == 1 or all(stop - start >= least for start, stop in parts)


def test_parts_run_side_by_side_and_one_of_them_on_the_caller() -> None:
    pool, together, threads = RowPool(3), threading.Barrier(3), set[str]()

    def work(start: int, stop: int) -> None:
        together.wait(timeout=30)  # breaks unless all three are running
        threads.add(threading.current_thread().name)

    pool.run(work, 3, 1)
    pool.close()
    assert len(threads) == 3
    assert threading.current_thread().name in threads


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_error_in_any_part_is_raised_when_all_have_ended(bad: int) -> None:
    pool, ended = RowPool(3), list[int]()

    def work(start: int, stop: int) -> None:
        ended.append(start)
        if start == bad:
            raise ArithmeticError(start)

    with pytest.raises(ArithmeticError):
        pool.run(work, 3, 1)
    assert sorted(ended) == [0, 1, 2]
    pool.run(lambda start, stop: ended.append(start), 3, 1)  # and it still works
    pool.close()


def test_resize_counts_from_the_next_run() -> None:
    pool, parts = RowPool(2), list[int]()
    pool.run(lambda start, stop: parts.append(start), 8, 1)
    pool.resize(4)
    assert pool.cores == 4
    pool.run(lambda start, stop: parts.append(start), 8, 1)
    pool.close()
    assert sorted(parts) == [0, 0, 2, 4, 4, 6]


def test_usable_cores_is_at_least_one() -> None:
    assert usable_cores() >= 1
