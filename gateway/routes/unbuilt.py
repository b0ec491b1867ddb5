"""Routes whose engines are not built yet: each answers 501 ``not_supported`` in its protocol's envelope.

They pass the same guards as the others, so that nothing about access changes when they are built. Each needs a kind of model
and reads which one is asked for first: a name that is not in the registry is a 404, a model of another kind a 400.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engines.wire import Task
from gateway.classify import classify
from gateway.errors import NotSupported
from gateway.protocols import model_name
from gateway.routes.bodies import form_model, parsed_json
from gateway.services import services_of

__all__ = ["ROUTES"]

_JSON_ROUTES: dict[str, Task] = {
    "/v1/audio/speech": "tts",
}
_FORM_ROUTES: dict[str, Task] = {"/v1/audio/transcriptions": "stt", "/v1/audio/translations": "stt"}
_VOICES = "/v1/audio/voices"


async def unbuilt(request: Request) -> Response:
    """Any, once it has named a suitable model."""
    raise NotSupported(f"{request.method} {request.scope['route'].path} is not built yet")


async def of_json(request: Request) -> Response:
    """POST of a JSON body with a ``model``"""
    services = services_of(request)
    path = request.scope["route"].path
    name = await parsed_json(request, model_name.parse, services.limits)
    classify(services, name, (_JSON_ROUTES[path],))
    return await unbuilt(request)


async def of_form(request: Request) -> Response:
    """POST of a form with a ``model``"""
    name = await form_model(request)
    classify(services_of(request), name, (_FORM_ROUTES[request.scope["route"].path],))
    return await unbuilt(request)


async def voices(request: Request) -> Response:
    """GET /v1/audio/voices, which may name a ``model``"""
    if name := request.query_params.get("model"):
        classify(services_of(request), name, ("tts",))
    return await unbuilt(request)


ROUTES = [
    *(Route(path, of_json, methods=["POST"]) for path in _JSON_ROUTES),
    *(Route(path, of_form, methods=["POST"]) for path in _FORM_ROUTES),
    Route(_VOICES, voices, methods=["GET"]),
]
