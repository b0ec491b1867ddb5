"""NVIDIA's run-time compiler, the library that MLX has brought into the process, called beside MLX.

ctypes lets go of the GIL in every call, and the library compiles in several threads at once (its front end excepted, a small part).
Functions and options are those of NVIDIA's NVRTC guide.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CompileError", "Compiled", "Nvrtc", "loaded_library"]

_MAPS = Path("/proc/self/maps")
_SUCCESS = 0


class CompileError(Exception):
    """NVRTC's name for what went wrong, and its log where there is one."""


@dataclass(frozen=True)
class Compiled:
    """A kernel for one architecture."""

    symbol: str  # its name in the image
    image: bytes  # cubin


class Nvrtc:
    """The library at ``path``. OSError where it cannot be loaded, AttributeError where it lacks a function. Any thread may call."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        # nvrtcProgram is a pointer.
        self._version = _function(library, "nvrtcVersion", [ctypes.POINTER(ctypes.c_int)] * 2)
        self._error_string = library.nvrtcGetErrorString
        self._error_string.argtypes = [ctypes.c_int]
        self._error_string.restype = ctypes.c_char_p
        texts = ctypes.POINTER(ctypes.c_char_p)
        self._create = _function(
            library,
            "nvrtcCreateProgram",
            [ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, texts, texts],
        )
        self._destroy = _function(library, "nvrtcDestroyProgram", [ctypes.POINTER(ctypes.c_void_p)])
        self._name = _function(library, "nvrtcAddNameExpression", [ctypes.c_void_p, ctypes.c_char_p])
        self._compile = _function(library, "nvrtcCompileProgram", [ctypes.c_void_p, ctypes.c_int, texts])
        self._log_size = _function(library, "nvrtcGetProgramLogSize", [ctypes.c_void_p, _SIZE])
        self._log = _function(library, "nvrtcGetProgramLog", [ctypes.c_void_p, ctypes.c_char_p])
        self._lowered = _function(library, "nvrtcGetLoweredName", [ctypes.c_void_p, ctypes.c_char_p, texts])
        self._image_size = _function(library, "nvrtcGetCUBINSize", [ctypes.c_void_p, _SIZE])
        self._image = _function(library, "nvrtcGetCUBIN", [ctypes.c_void_p, ctypes.c_char_p])

    def version(self) -> str:
        """Such as ``13.0``."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._version(ctypes.byref(major), ctypes.byref(minor)))
        return f"{major.value}.{minor.value}"

    def compile(self, text: str, function: str, options: Sequence[str], headers: Mapping[str, str]) -> Compiled:
        """``function`` is the kernel's name in C++, with its namespaces; ``headers`` are texts by the names they are included by.
        CompileError."""
        program = ctypes.c_void_p()
        source, included, names = text.encode(), _texts(headers.values()), _texts(headers)  # they outlive the program
        self._check(self._create(ctypes.byref(program), source, b"kernel.cu", len(headers), included, names))
        try:
            self._check(self._name(program, function.encode()))
            status = self._compile(program, len(options), _texts(options))
            if status != _SUCCESS:
                raise CompileError(f"{self._describe(status)}: {self._read_log(program)}")
            lowered = ctypes.c_char_p()
            self._check(self._lowered(program, function.encode(), ctypes.byref(lowered)))
            symbol = (lowered.value or b"").decode()  # the program's memory: copied before it is destroyed
            return Compiled(symbol, self._read_image(program))
        finally:
            self._destroy(ctypes.byref(program))

    def _read_image(self, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._check(self._image_size(program, ctypes.byref(size)))
        if not size.value:  # the options named no real architecture
            raise CompileError("the compiler made no cubin")
        image = ctypes.create_string_buffer(size.value)
        self._check(self._image(program, image))
        return image.raw

    def _read_log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._check(self._log_size(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value + 1)
        self._check(self._log(program, log))
        return log.value.decode(errors="replace").strip()

    def _check(self, status: int) -> None:
        if status != _SUCCESS:
            raise CompileError(self._describe(status))

    def _describe(self, status: int) -> str:
        text: bytes | None = self._error_string(status)
        return (text or b"NVRTC failed").decode()


_SIZE = ctypes.POINTER(ctypes.c_size_t)


def _function(library: ctypes.CDLL, name: str, arguments: list[Any]) -> Callable[..., int]:
    function = getattr(library, name)
    function.argtypes = arguments
    function.restype = ctypes.c_int
    called: Callable[..., int] = function
    return called


def _texts(values: Iterable[str]) -> Any:
    encoded = [value.encode() for value in values]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def loaded_library(name: str) -> str | None:
    """Path of the shared library of this process whose file begins so (``libnvrtc.so``); None where there is none."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return None
    for line in lines:
        path = line.split(maxsplit=5)[5:]
        if path and path[0].startswith("/") and path[0].rpartition("/")[2].startswith(name):
            return path[0]
    return None
