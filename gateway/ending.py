"""How the events of one request end: with its Finished, or with an error."""

from __future__ import annotations

from engines.wire import Event, Failed, Finished
from gateway.errors import GatewayError, ModelUnloaded, WorkerDied, from_wire

__all__ = ["ending_of", "without_end"]


def ending_of(event: Event) -> Finished | None:
    """The event, where it ends its request with an answer; None where it does not end it. Raises what else it ended with."""
    if isinstance(event, Finished):
        if event.reason == "cancelled":
            raise ModelUnloaded("the server cancelled this request before its end", retry=False)
        return event
    if isinstance(event, Failed):
        raise _in_flight(from_wire(event.error))
    return None


def without_end() -> GatewayError:
    """The error of a request whose events stopped before its terminal one."""
    return WorkerDied("the model's worker ended this request without an answer", retry=False)


def _in_flight(error: GatewayError) -> GatewayError:
    """A worker's death is not to be retried by the client when its request was under way: it is never replayed."""
    if isinstance(error, WorkerDied):
        error.retry = False
    return error
