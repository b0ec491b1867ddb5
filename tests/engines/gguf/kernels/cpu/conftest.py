"""The compiled kernels for the tests of this folder, which are skipped where they are not built."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest

from engines.gguf.kernels.cpu import Extension, extension, why_missing


@pytest.fixture(autouse=True)
def exact_kernels() -> None:
    """Overrides the fixture of the folders above: here all back ends are there."""


@pytest.fixture
def compiled() -> Iterator[Extension]:
    """The extension, on the CPU; variant and threads are put back."""
    found = extension()
    if found is None:
        pytest.skip(str(why_missing()))
    if mx.default_device().type != mx.DeviceType.cpu:
        pytest.skip("the default device is not the CPU")
    variant, threads = found.variant(), found.threads()
    yield found
    found.choose_variant(variant)
    found.set_threads(threads)


_loaded = extension()


@pytest.fixture(params=["generic"] if _loaded is None else _loaded.variants())
def variant(request: pytest.FixtureRequest, compiled: Extension) -> str:
    """Each instruction set that this machine can run."""
    assert compiled.choose_variant(request.param)
    return str(request.param)
