import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest

from engines.gguf.kernels.blas.blas_threads import use_one_thread


@pytest.mark.skipif(sys.platform != "linux", reason="NumPy's wheels bring OpenBLAS on Linux")
def test_blas_of_the_wheel_is_kept_to_one_thread() -> None:
    assert use_one_thread()
    (library,) = (Path(np.__file__).parent.parent / "numpy.libs").glob("libscipy_openblas*")
    assert ctypes.CDLL(str(library)).scipy_openblas_get_num_threads64_() == 1


def test_other_builds_of_numpy_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "__file__", str(tmp_path / "numpy" / "__init__.py"))
    assert not use_one_thread()
