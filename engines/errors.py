"""Errors the engines raise, in one tree.

::

    EngineError
    ├── CheckpointError            the file cannot be used; says which file and where in it
    │   ├── GgufFormatError        not a well-formed GGUF file
    │   └── UnsupportedModel       well-formed, but its architecture, quant type or tokenizer is not supported
    ├── RequestError               this request cannot be served; others are not affected
    │   ├── InvalidField           a field is out of range or contradicts another
    │   ├── UnsupportedParameter   a field this engine does not have
    │   ├── UnsupportedModality    an input of a kind this model cannot read
    │   └── ContextLengthExceeded  prompt and answer cannot fit the context or the KV grant
    ├── OutOfMemory                the device had no room left for this request; others are not affected
    ├── MissingExtra               an optional dependency is not installed; carries the pip command
    ├── BackendError               MLX's back end is missing, doubled or broken; carries the command that mends it
    └── EngineFailed               the engine itself broke; the worker exits

An error crosses the socket as :class:`engines.wire.WireError` (``to_wire`` in that module); ``code`` is the one the client
will read, and the gateway's table (``gateway/errors.py``) maps it to a status.
"""

__all__ = [
    "BackendError",
    "CheckpointError",
    "ContextLengthExceeded",
    "EngineError",
    "EngineFailed",
    "GgufFormatError",
    "InvalidField",
    "MissingExtra",
    "OutOfMemory",
    "RequestError",
    "UnsupportedModality",
    "UnsupportedModel",
    "UnsupportedParameter",
]


class EngineError(Exception):
    """Base of all of them. ``message`` is one sentence for a person, with the way out where there is one."""

    code = "engine_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class CheckpointError(EngineError):
    """The model's files cannot be used."""

    code = "model_load_failed"


class GgufFormatError(CheckpointError):
    """Not a well-formed GGUF file.

    ``path`` names the file, ``offset`` the byte at which reading failed (None where no single byte is at fault).
    """

    def __init__(self, path: str, what: str, offset: int | None = None) -> None:
        where = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{path}: {what}{where}")
        self.path = path
        self.offset = offset


class UnsupportedModel(CheckpointError):
    """Well-formed, but of an architecture, quant type, tokenizer or arithmetic that is not supported; names which."""


class RequestError(EngineError):
    """This request cannot be served as sent."""

    code = "invalid_request_error"


class InvalidField(RequestError):
    """``param`` has a value that is not allowed; the message gives the value and the range."""


class UnsupportedParameter(RequestError):
    """``param`` is not something this engine can honour."""

    code = "unsupported_parameter"


class UnsupportedModality(RequestError):
    """An input (image, audio) of a kind this model cannot read."""

    code = "unsupported_modality"


class ContextLengthExceeded(RequestError):
    """The prompt (and the tokens asked for) cannot fit: it needs ``tokens``, and there is room for ``most_tokens``.

    The message says both too; protocols that have a sentence of their own for this need the numbers.
    """

    code = "context_length_exceeded"

    def __init__(
        self, message: str, *, param: str | None = None, tokens: int | None = None, most_tokens: int | None = None
    ) -> None:
        super().__init__(message, param=param)
        self.tokens = tokens
        self.most_tokens = most_tokens


class OutOfMemory(EngineError):
    """Memory ran out while this request was served, again after everything else had given way; another try may succeed."""

    code = "out_of_memory"


class MissingExtra(EngineError):
    """An optional dependency is not installed."""

    code = "missing_extra"

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'mlx-innkeeper[{extra}]'")
        self.extra = extra


class BackendError(EngineError):
    """MLX has no back end, two back ends, or a broken one; the message names the command that mends it."""

    code = "model_load_failed"


class EngineFailed(EngineError):
    """The engine broke. The worker reports it and exits; the gateway starts a new generation."""

    code = "worker_died"
