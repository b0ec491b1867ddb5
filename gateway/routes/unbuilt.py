"""Routes whose engines are not built yet: each answers 501 ``not_supported`` in its protocol's envelope.

They pass the same guards as the others, so that nothing about access changes when they are built.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.errors import NotSupported

__all__ = ["ROUTES"]

_PATHS: dict[str, list[str]] = {
    # OpenAI
    "/v1/responses": ["POST"],
    "/v1/responses/{id}": ["GET", "DELETE"],
    "/v1/responses/{id}/cancel": ["POST"],
    "/v1/responses/{id}/input_items": ["GET"],
    "/v1/embeddings": ["POST"],
    "/v1/audio/transcriptions": ["POST"],
    "/v1/audio/translations": ["POST"],
    "/v1/audio/speech": ["POST"],
    "/v1/audio/voices": ["GET"],
    # rerank
    "/v1/rerank": ["POST"],
    "/rerank": ["POST"],
    "/v1/score": ["POST"],
    # Anthropic
    "/v1/messages": ["POST"],
    "/v1/messages/count_tokens": ["POST"],
    # Ollama
    "/api/version": ["GET"],
    "/api/tags": ["GET"],
    "/api/ps": ["GET"],
    "/api/show": ["POST"],
    "/api/chat": ["POST"],
    "/api/generate": ["POST"],
    "/api/embed": ["POST"],
    "/api/embeddings": ["POST"],
    # text tools
    "/tokenize": ["POST"],
    "/detokenize": ["POST"],
    # operations
    "/openapi.json": ["GET"],
}


async def unbuilt(request: Request) -> Response:
    """Any of them."""
    raise NotSupported(f"{request.method} {request.scope['route'].path} is not built yet")


ROUTES = [Route(path, unbuilt, methods=methods) for path, methods in _PATHS.items()]
