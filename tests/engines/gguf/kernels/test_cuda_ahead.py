"""Kernels compiled ahead: which, by whom, how often; and MLX's own way where that is impossible. A fake compiler and a fake MLX."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from engines.gguf import kernels
from engines.gguf.kernels.cuda import CudaBackend, ahead, launch
from engines.gguf.kernels.cuda import backend as cuda_backend
from engines.gguf.kernels.cuda import kernel as cuda_kernel
from engines.gguf.kernels.cuda.ahead import Precompiler
from engines.gguf.kernels.cuda.image_store import ImageStore
from engines.gguf.kernels.cuda.mlx_module import Argument, Module, module_of
from engines.gguf.kernels.cuda.nvrtc import Compiled, CompileError, Nvrtc
from engines.gguf.model import build_model
from engines.gguf.quants import quant_type
from engines.header import read_header
from engines.text.warm_up import warm_up
from tests.engines.gguf.helpers_tiny import tiny_model

Q4_K, Q8_0 = quant_type("Q4_K"), quant_type("Q8_0")


class FakeCompiler:
    """Answers with the text's length, or with an error for the functions in ``fails``."""

    def __init__(self, version: str = "13.0", fails: tuple[str, ...] = ()) -> None:
        self._version = version
        self._fails = fails
        self.functions: list[str] = []

    def version(self) -> str:
        return self._version

    def compile(self, text: str, function: str, options: Sequence[str], headers: Mapping[str, str]) -> Compiled:
        self.functions.append(function)
        if any(name in function for name in self._fails):
            raise CompileError("NVRTC_ERROR_COMPILATION: cannot open source file")
        return Compiled(f"symbol of {function}", f"image of {len(text)}".encode())


class FakeMlx:
    """Stands for ``mx.fast.cuda_kernel``: counts launches, and which modules were there when they came."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.launched: list[str] = []
        self.found: set[str] = set()

    def __call__(self, **kernel: Any) -> Any:
        name = f"custom_kernel_{kernel['name']}"

        def call(**arguments: Any) -> list[mx.array]:
            self.launched.append(name)
            if list(self._folder.glob(f"{name}_*.ptx")):
                self.found.add(name)
            shapes, dtypes = arguments["output_shapes"], arguments["output_dtypes"]
            return [mx.ones(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]

        return call


class Machine:
    """A process with these fakes, over a store and a folder that outlive it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._patch = patch
        self.modules = folder / "ptx"

    def start(self, compiler: FakeCompiler, options: Sequence[str] = ("--gpu-architecture=sm_90a",)) -> FakeMlx:
        launch.forget()
        made = Precompiler(compiler, options, ImageStore(self._folder / "store"), self.modules)
        for module in (ahead, cuda_kernel):
            self._patch.setattr(module, "precompiler", lambda: made)
        mlx = FakeMlx(self.modules)
        self._patch.setattr(mx.fast, "cuda_kernel", mlx)
        self._patch.setattr(cuda_backend, "capability", lambda: 9)
        return mlx


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    if module_of("probe", "", "", [], []) is None:
        pytest.skip("no libstdc++ here")
    yield Machine(tmp_path, monkeypatch)
    launch.forget()


def some(name: str) -> Module:
    made = module_of(name, "", "", [Argument("x", mx.float16, is_scalar=False)], [("out", mx.float16)])
    assert made is not None
    return made


def products(back_end: CudaBackend) -> mx.array:
    blocks = mx.zeros((100, Q4_K.row_bytes(512)), mx.uint8)
    for m in (1, 8):
        out = back_end.multiply(mx.zeros((m, 512), mx.float16), blocks, Q4_K, True)
    return out


def test_modules_are_put_where_mlx_looks_with_names_and_symbols(machine: Machine) -> None:
    machine.start(FakeCompiler())
    compiles = ahead.precompiler()
    assert compiles is not None
    module = some("one")
    assert compiles.ensure(module)
    image = machine.modules / f"{module.name}.ptx"
    assert image.read_bytes() == f"image of {len(module.text)}".encode()
    line = image.with_suffix(".txt").read_text()
    assert line == "mlx::core::cu::custom_kernel_one\tsymbol of mlx::core::cu::custom_kernel_one\n"


def test_another_process_compiles_nothing_anew_even_where_the_temporary_folder_was_emptied(machine: Machine) -> None:
    for emptied in (False, True, True):
        compiler = FakeCompiler()
        machine.start(compiler)
        products(CudaBackend())
        assert bool(compiler.functions) is not emptied
        assert len(list(machine.modules.glob("*.ptx"))) == 3  # and the probe's
        for path in machine.modules.iterdir():
            path.unlink()


@pytest.mark.parametrize("other", [("12.9", "--gpu-architecture=sm_90a"), ("13.0", "--gpu-architecture=sm_80")])
def test_another_compiler_or_gpu_has_images_and_names_of_its_own(other: tuple[str, str], machine: Machine) -> None:
    machine.start(FakeCompiler())
    first = ahead.made_by()
    products(CudaBackend())
    compiler = FakeCompiler(version=other[0])
    mlx = machine.start(compiler, [other[1]])
    products(CudaBackend())
    assert len(compiler.functions) == 3
    assert ahead.made_by() != first
    assert all(ahead.made_by() in name for name in mlx.launched)


def test_a_damaged_module_in_the_temporary_folder_is_replaced(machine: Machine) -> None:
    machine.start(FakeCompiler())
    products(CudaBackend())
    images = {path: path.read_bytes() for path in machine.modules.iterdir()}
    for path in images:
        path.write_bytes(b"half of i")
    machine.start(FakeCompiler())
    products(CudaBackend())
    assert {path: path.read_bytes() for path in machine.modules.iterdir()} == images


def test_what_does_not_compile_is_left_to_mlx_and_tried_once(machine: Machine) -> None:
    compiler = FakeCompiler(fails=("product",))
    mlx = machine.start(compiler)
    for _ in range(2):
        out = products(CudaBackend())
    assert mx.array_equal(out, mx.ones((8, 100), mx.float16))
    assert sum("product" in name for name in compiler.functions) == 2
    assert not [name for name in mlx.found if "product" in name]


def test_without_a_compiler_every_kernel_is_launched_as_it_is(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlx = machine.start(FakeCompiler())
    for module in (ahead, cuda_kernel):
        monkeypatch.setattr(module, "precompiler", lambda: None)
    ran: list[None] = []
    CudaBackend().compile_ahead(lambda: ran.append(None), lambda fraction: None)
    products(CudaBackend())
    assert not ran
    assert len(mlx.launched) == 3
    assert not machine.modules.exists()


def test_this_machine_has_a_precompiler_only_with_cuda() -> None:
    assert (ahead.precompiler() is None) or mx.cuda.is_available()


class Recorded(FakeCompiler):
    """Stands for NVRTC, found at a path."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.options: Sequence[str] = ()

    def compile(self, text: str, function: str, options: Sequence[str], headers: Mapping[str, str]) -> Compiled:
        self.options = options
        return super().compile(text, function, options, headers)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An environment with MLX for CUDA and NVRTC, whose CUDA headers are a test's matter."""
    libraries = {"libnvrtc.so": "nvidia/cu13/lib/libnvrtc.so.13", "libmlx.so": "mlx/lib/libmlx.so"}
    monkeypatch.setattr(ahead, "loaded_library", lambda name: str(tmp_path / libraries[name]))
    monkeypatch.setattr(ahead, "Nvrtc", Recorded)
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    info = {"compute_capability_major": 9, "compute_capability_minor": 0}
    monkeypatch.setattr(mx, "device_info", lambda: info)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MLX_PTX_CACHE_DIR", str(tmp_path / "ptx"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    for folder in ("nvidia/cu13/include", "toolkit/include"):
        (tmp_path / folder).mkdir(parents=True)
    ahead.precompiler.cache_clear()
    yield tmp_path
    ahead.precompiler.cache_clear()


@pytest.mark.parametrize("headers", ["nvidia/cu13/include", "toolkit/include"])
def test_the_compiler_is_called_as_mlx_calls_it(headers: str, install: Path) -> None:
    (install / headers / "cuda_fp16.h").write_text("")
    compiles = ahead.precompiler()
    assert compiles is not None
    assert compiles.ensure(some("one"))
    compiler = compiles._compiler
    assert isinstance(compiler, Recorded)
    assert compiler.path == str(install / "nvidia/cu13/lib/libnvrtc.so.13")
    includes = [install / "mlx/include/cccl", install / headers, install / headers / "cccl"]
    assert list(compiler.options) == [
        "--device-as-default-execution-space",
        "--gpu-architecture=sm_90a",
        *(f"--include-path={include}" for include in includes),
    ]
    assert len(list((install / "cache/innkeeper/kernels").iterdir())) == 1
    assert len(list((install / "ptx").iterdir())) == 2


def test_without_cuda_headers_mlx_compiles(install: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_TOOLKIT", install / "none")
    assert ahead.precompiler() is None


def test_where_mlx_cannot_be_given_modules_none_is_compiled_twice(
    install: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (install / "toolkit/include/cuda_fp16.h").write_text("")
    (install / "file").write_text("")
    monkeypatch.setenv("MLX_PTX_CACHE_DIR", str(install / "file" / "ptx"))
    assert ahead.precompiler() is None
    assert "MLX_PTX_CACHE_DIR" in caplog.text


def test_a_library_that_cannot_be_called_is_left_to_mlx(install: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (install / "toolkit/include/cuda_fp16.h").write_text("")
    monkeypatch.setattr(ahead, "Nvrtc", Nvrtc)
    assert ahead.precompiler() is None  # there is no such file


def test_kernels_answer_zeros_while_they_are_gathered_and_no_graph_keeps_them(machine: Machine) -> None:
    mlx = machine.start(FakeCompiler())
    back_end = CudaBackend()
    kept = mx.compile(lambda: products(back_end))
    with ahead.gathering() as modules:
        assert not mx.any(kept()).item()
    assert sorted(name.split("_")[4] for name in modules) == ["product", "product"]
    assert [name for name in mlx.launched if "product" in name] == []
    assert mx.all(kept()).item()
    assert len([name for name in mlx.launched if "product" in name]) == 2


def test_graphs_are_kept_again_after_a_failure_to_gather() -> None:
    traced: list[None] = []

    def follow(x: mx.array) -> mx.array:
        traced.append(None)
        return x + 1

    kept = mx.compile(follow)
    with pytest.raises(ValueError, match="of the model"), ahead.gathering():
        raise ValueError("of the model")
    for _ in range(3):
        kept(mx.zeros((2,)))
    assert len(traced) == 1


def test_modules_are_compiled_by_several_threads_at_once(machine: Machine) -> None:
    together = threading.Barrier(3, timeout=30)

    class Meeting(FakeCompiler):
        def compile(self, *arguments: Any) -> Compiled:
            together.wait()  # breaks unless three threads are in here
            return super().compile(*arguments)

    machine.start(Meeting())
    compiles = ahead.precompiler()
    assert compiles is not None
    told: list[float] = []
    compiles.ensure_all([some(f"k{i}") for i in range(6)], 3, told.append)
    assert told == sorted(told) and len(told) == 6 and told[-1] == 1


@pytest.mark.parametrize("most", [0, 1])
def test_where_no_thread_can_be_had_kernels_are_compiled_later(
    most: int, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = FakeCompiler()
    machine.start(compiler)
    compiles = ahead.precompiler()
    assert compiles is not None
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_few(thread: threading.Thread) -> None:
        if len(started) >= most:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    modules = [some(f"k{i}") for i in range(6)]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_few)
        compiles.ensure_all(modules, 3, lambda fraction: None)
    assert len(compiler.functions) == (6 if most else 0)
    assert [compiles.ensure(module) for module in modules] == [not most] * 6


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_warm_up_launches_no_kernel_that_was_not_compiled_before(
    family: str, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = FakeCompiler()
    mlx = machine.start(compiler)
    back_end = CudaBackend()
    monkeypatch.setattr(CudaBackend, "available", lambda self: True)
    monkeypatch.setattr(kernels.table, "BACKENDS", (back_end,))
    model = build_model(read_header(tiny_model(family, quant="Q8_0").write(tmp_path / "m.gguf")), dtype="float16").model
    told: list[float] = []

    def report(fraction: float) -> None:
        told.append(fraction)
        if fraction <= 0.8:
            assert [name for name in mlx.launched if "probe" not in name] == []

    warm_up(model, 9, report, back_end)
    assert told == sorted(told) and told[-1] == 1
    compiled = list(compiler.functions)
    assert len(compiled) == len(set(compiled)) > 5
    assert set(mlx.launched) == mlx.found
    assert {function.rpartition("::")[2] for function in compiled} == set(mlx.launched)
