"""A stack for code that goes as deep as its input is long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["on_deep_stack"]

# llguidance follows rules and references by recursion, some 6 kB a step, and an overflow ends the process. The longest grammar
# that is read has room for a chain of 30,000. Memory is taken only where the stack is used, and given back with the thread.
_BYTES = 512 * 2**20
_CREATING = threading.Lock()  # the size of new stacks is the process's

Result = TypeVar("Result")


def on_deep_stack(work: Callable[[], Result]) -> Result:
    """What ``work`` returns or raises, on a thread of its own that is waited for."""
    with ThreadPoolExecutor(1, thread_name_prefix="deep") as thread:
        with _CREATING:
            usual = threading.stack_size(_BYTES)
            try:
                outcome = thread.submit(work)  # which starts it
            finally:
                threading.stack_size(usual)
        return outcome.result()
