"""Errors the gateway answers with, in one tree; one table maps class to status.

::

    GatewayError
    ├── InvalidRequest           400 invalid_request_error: names field, value and range
    │   ├── UnsupportedParameter 400 unsupported_parameter
    │   ├── UnsupportedModality  400 unsupported_modality
    │   ├── WrongModelKind       400 wrong_model_kind: lists suitable ids
    │   └── ContextExceeded      400 context_length_exceeded: both numbers
    ├── InvalidApiKey            401
    ├── Forbidden                403 insufficient_scope, origin_not_allowed, host_not_allowed
    ├── NotFound                 404 not_found
    │   └── ModelNotFound        404 model_not_found: lists ids
    ├── MethodNotAllowed         405, carries Allow
    ├── Conflict                 409 model_pinned, model_busy (admin only)
    ├── RequestTooLarge          413: the limit is named
    ├── WrongContentType         415
    ├── RateLimited              429
    ├── NotSupported             501 not_supported
    │   └── MissingExtra         501 missing_extra: the pip command
    ├── Unavailable              503 + Retry-After
    │   ├── ServerOverloaded, QueueTimeout, ModelLoadFailed, ModelUnloaded,
    │   ├── ModelNotAcquired, WorkerDied, ShuttingDown, StoreUnavailable
    └── NoRoom                   507
        ├── ModelTooLarge
        └── NoRoomBesidePinned

Each protocol renders them in its own envelope (``protocols/``). ``retry`` False sends ``x-should-retry: false``, since the
OpenAI client retries every 5xx and 409 otherwise.
"""

from __future__ import annotations

from typing import ClassVar

from engines.wire import WireError

__all__ = [
    "Conflict",
    "ContextExceeded",
    "Forbidden",
    "GatewayError",
    "InternalError",
    "InvalidApiKey",
    "InvalidRequest",
    "MethodNotAllowed",
    "MissingExtra",
    "ModelLoadFailed",
    "ModelNotAcquired",
    "ModelNotFound",
    "ModelTooLarge",
    "ModelUnloaded",
    "NoRoom",
    "NoRoomBesidePinned",
    "NotFound",
    "NotSupported",
    "QueueTimeout",
    "RateLimited",
    "RequestTooLarge",
    "ServerOverloaded",
    "ShuttingDown",
    "StoreUnavailable",
    "Unavailable",
    "UnsupportedModality",
    "UnsupportedParameter",
    "WorkerDied",
    "WrongContentType",
    "WrongModelKind",
    "from_wire",
]


class GatewayError(Exception):
    """Base of all. ``message`` is for a person; ``param`` names the request field at fault, when one is.

    A message can always be encoded: bytes of a file name that are not UTF-8 are shown by their numbers.
    """

    status: ClassVar[int] = 500
    default_code: ClassVar[str] = "internal_error"
    default_retry: ClassVar[bool | None] = None  # None: no x-should-retry header

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        retry: bool | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        message = message.encode(errors="backslashreplace").decode()
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        self.retry_after_s = retry_after_s
        self.retry = self.default_retry if retry is None else retry
        self.headers = headers or {}


class InternalError(GatewayError):
    """A defect of ours; the log has the trace, the client its request id."""


class InvalidRequest(GatewayError):
    status = 400
    default_code = "invalid_request_error"


class UnsupportedParameter(InvalidRequest):
    default_code = "unsupported_parameter"


class UnsupportedModality(InvalidRequest):
    default_code = "unsupported_modality"


class WrongModelKind(InvalidRequest):
    default_code = "wrong_model_kind"


class ContextExceeded(InvalidRequest):
    """What was asked needs ``tokens``, where there is room for ``most_tokens``; None where the worker did not say."""

    default_code = "context_length_exceeded"
    tokens: int | None = None
    most_tokens: int | None = None


class InvalidApiKey(GatewayError):
    status = 401
    default_code = "invalid_api_key"


class Forbidden(GatewayError):
    """``code`` is insufficient_scope, origin_not_allowed or host_not_allowed."""

    status = 403
    default_code = "insufficient_scope"


class NotFound(GatewayError):
    status = 404
    default_code = "not_found"


class ModelNotFound(NotFound):
    default_code = "model_not_found"


class MethodNotAllowed(GatewayError):
    status = 405
    default_code = "method_not_allowed"


class Conflict(GatewayError):
    """``code`` is model_pinned or model_busy."""

    status = 409
    default_code = "model_busy"
    default_retry = False


class RequestTooLarge(GatewayError):
    status = 413
    default_code = "request_too_large"


class WrongContentType(GatewayError):
    status = 415
    default_code = "unsupported_media_type"


class RateLimited(GatewayError):
    status = 429
    default_code = "rate_limit_exceeded"


class NotSupported(GatewayError):
    status = 501
    default_code = "not_supported"
    default_retry = False


class MissingExtra(NotSupported):
    default_code = "missing_extra"


class Unavailable(GatewayError):
    """Another try may succeed; ``retry_after_s`` says when (2 s where nothing better is known)."""

    status = 503
    default_code = "server_overloaded"

    def __init__(
        self, message: str, *, retry_after_s: float = 2.0, retry: bool | None = None, param: str | None = None
    ):
        super().__init__(message, retry_after_s=retry_after_s, retry=retry, param=param)


class ServerOverloaded(Unavailable):
    default_code = "server_overloaded"


class QueueTimeout(Unavailable):
    default_code = "queue_timeout"


class ModelLoadFailed(Unavailable):
    default_code = "model_load_failed"


class ModelUnloaded(Unavailable):
    default_code = "model_unloaded"


class ModelNotAcquired(Unavailable):
    default_code = "model_not_acquired"


class WorkerDied(Unavailable):
    """Of a request in flight it is raised with ``retry=False``: it is never replayed."""

    default_code = "worker_died"


class ShuttingDown(Unavailable):
    default_code = "shutting_down"


class StoreUnavailable(Unavailable):
    """Stored responses can be neither kept nor read, and the request is about them."""

    default_code = "store_unavailable"


class NoRoom(GatewayError):
    status = 507
    default_code = "model_too_large"
    default_retry = False


class ModelTooLarge(NoRoom):
    default_code = "model_too_large"


class NoRoomBesidePinned(NoRoom):
    default_code = "no_room_beside_pinned"


_FROM_WIRE: dict[str, type[GatewayError]] = {
    "invalid_request_error": InvalidRequest,
    "unsupported_parameter": UnsupportedParameter,
    "unsupported_modality": UnsupportedModality,
    "context_length_exceeded": ContextExceeded,
    "missing_extra": MissingExtra,
    "out_of_memory": ServerOverloaded,
    "model_load_failed": ModelLoadFailed,
    "worker_died": WorkerDied,
}


def from_wire(error: WireError) -> GatewayError:
    """The gateway's error for one a worker reported; an unknown code is an InternalError that keeps the message."""
    kind = _FROM_WIRE.get(error.code, InternalError)
    # These end requests that had begun: a worker's death, and memory that ran out in the middle of one.
    begun = kind in (WorkerDied, ServerOverloaded)
    raised = kind(error.message, param=error.param, retry=False if begun else None)
    if isinstance(raised, ContextExceeded):
        raised.tokens, raised.most_tokens = error.tokens, error.most_tokens
    return raised
