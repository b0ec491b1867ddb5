"""What operators see of the residency, and what they ask of it.

An id may hold slashes, so it takes the whole path up to the verb, which is the last segment; an alias names its model too.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.errors import InvalidRequest, MethodNotAllowed, ModelNotFound
from gateway.protocols import admin
from gateway.protocols.scheduling import scheduling_objects
from gateway.registry.load import RegistryError
from gateway.routes.bodies import optional_json_bytes
from gateway.routes.event_stream import EventStream
from gateway.services import services_of

__all__ = ["ROUTES"]

_VERBS = ("load", "unload", "pin", "unpin")


async def status(request: Request) -> Response:
    """GET /admin/status"""
    return JSONResponse(admin.status_object(services_of(request).residency.statistics()))


async def models(request: Request) -> Response:
    """GET /admin/models"""
    return JSONResponse({"models": admin.model_objects(services_of(request).residency.statistics())})


async def model(request: Request) -> Response:
    """GET /admin/models/{id}: one of them, with its capacity; also a removed one whose bytes are not back yet"""
    services, name = services_of(request), request.path_params["id"]
    statistics = services.residency.statistics()
    found = admin.model_object(statistics, name)
    if found is None:
        try:
            name = services.catalog.resolve(name).id
        except ModelNotFound:
            _refuse_get_of_verb(request, name)
            raise
        found = admin.model_object(statistics, name) or {}
    return JSONResponse(found | scheduling_objects(services.residency.scheduling(name)))


async def leases(request: Request) -> Response:
    """GET /admin/leases"""
    return JSONResponse({"leases": admin.lease_objects(services_of(request).residency.statistics())})


async def queue(request: Request) -> Response:
    """GET /admin/queue"""
    return JSONResponse({"queue": admin.queue_objects(services_of(request).residency.statistics())})


async def plan(request: Request) -> Response:
    """GET /admin/plan?model=ID: what a request for it would lead to; nothing is done"""
    services, name = services_of(request), request.query_params.get("model", "")
    if not name:
        raise InvalidRequest("the query needs a model: /admin/plan?model=ID", param="model")
    return JSONResponse(admin.plan_object(services.residency.plan(services.catalog.resolve(name).id)))


async def events(request: Request) -> EventStream:
    """GET /admin/events: every transition as it happens, server-sent"""
    services = services_of(request)
    return EventStream(services.residency.events, services.settings.server.keepalive_s)


async def load(request: Request) -> Response:
    """POST /admin/models/{id}/load: answers when it is loaded, or could not be"""
    admin.parse_nothing(await optional_json_bytes(request))
    answer = await services_of(request).residency.load(_id(request))
    return JSONResponse(admin.loaded_object(answer))


async def unload(request: Request) -> Response:
    """POST /admin/models/{id}/unload: answers when its bytes are free, or could not be freed"""
    wish = admin.parse_unload(await optional_json_bytes(request))
    answer = await services_of(request).residency.unload(_id(request), wish.mode, wish.deadline_s)
    return JSONResponse(admin.unloaded_object(answer))


async def pin(request: Request) -> Response:
    """POST /admin/models/{id}/pin"""
    admin.parse_nothing(await optional_json_bytes(request))
    answer = await services_of(request).residency.pin(_id(request))
    return JSONResponse(admin.pinned_object(answer, pinned=True))


async def unpin(request: Request) -> Response:
    """POST /admin/models/{id}/unpin"""
    admin.parse_nothing(await optional_json_bytes(request))
    answer = await services_of(request).residency.unpin(_id(request))
    return JSONResponse(admin.pinned_object(answer, pinned=False))


async def reload(request: Request) -> Response:
    """POST /admin/registry/reload: the file as it is now, or a 400 that names the key"""
    admin.parse_nothing(await optional_json_bytes(request))
    try:
        changes = await services_of(request).residency.reload()
    except RegistryError as error:
        raise InvalidRequest(str(error), param=error.key) from error
    return JSONResponse(admin.reload_object(changes))


async def cancel_lease(request: Request) -> Response:
    """DELETE /admin/leases/{id}: its requests end with an error; the lease ends when the worker has said so"""
    lease = request.path_params["id"]
    return JSONResponse({"id": lease, "model": services_of(request).residency.cancel_lease(lease), "cancelled": True})


def _id(request: Request) -> str:
    return services_of(request).catalog.resolve(request.path_params["id"]).id


def _refuse_get_of_verb(request: Request, name: str) -> None:
    """MethodNotAllowed for a GET of what only a POST does, unless a model has this very name."""
    if name.rpartition("/")[2] in _VERBS and "/" in name:
        message = f"{request.method} is not allowed on {request.url.path[:200]}; allowed: POST"
        raise MethodNotAllowed(message, headers={"allow": "POST"})


ROUTES = [
    Route("/admin/status", status, methods=["GET"]),
    Route("/admin/leases", leases, methods=["GET"]),
    Route("/admin/leases/{id}", cancel_lease, methods=["DELETE"]),
    Route("/admin/queue", queue, methods=["GET"]),
    Route("/admin/plan", plan, methods=["GET"]),
    Route("/admin/events", events, methods=["GET"]),
    Route("/admin/models", models, methods=["GET"]),
    Route("/admin/models/{id:path}/load", load, methods=["POST"]),
    Route("/admin/models/{id:path}/unload", unload, methods=["POST"]),
    Route("/admin/models/{id:path}/pin", pin, methods=["POST"]),
    Route("/admin/models/{id:path}/unpin", unpin, methods=["POST"]),
    Route("/admin/models/{id:path}", model, methods=["GET"]),
    Route("/admin/registry/reload", reload, methods=["POST"]),
]
