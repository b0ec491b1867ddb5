"""Work that recurses deeper than an ordinary stack allows."""

from __future__ import annotations

import threading

import pytest

from engines.text.constraints.deep_stack import on_deep_stack


def test_work_answers_and_raises_as_if_it_were_called() -> None:
    assert on_deep_stack(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        on_deep_stack(lambda: 1 // 0)


def test_threads_that_are_made_later_have_the_usual_stack() -> None:
    usual = threading.stack_size()
    on_deep_stack(lambda: None)
    with pytest.raises(ZeroDivisionError):
        on_deep_stack(lambda: 1 // 0)
    assert threading.stack_size() == usual
