"""Which model a request is for, and whether that model can do what the request asks. Nothing is guessed: a name that is not
in the registry is a 404, a model of another kind a 400 that lists the suitable ones.
"""

from __future__ import annotations

from engines.wire import Task
from gateway.errors import ShuttingDown, WrongModelKind
from gateway.registry.catalog import ResolvedModel
from gateway.services import Services

__all__ = ["TEXT", "classify"]

TEXT: tuple[Task, ...] = ("text", "vision")  # kinds that chat and complete

_KINDS: dict[Task, str] = {
    "text": "a text model",
    "vision": "a vision model",
    "embedding": "an embedding model",
    "rerank": "a reranker",
    "stt": "a speech-to-text model",
    "tts": "a text-to-speech model",
}
_RETRY_AFTER_S = 10.0


def classify(services: Services, name: str, tasks: tuple[Task, ...]) -> ResolvedModel:
    """The model of this name (id, alias, ``id@profile``). ShuttingDown, ModelNotFound, WrongModelKind, or its own error.

    A model whose files cannot be read may be of any kind: what is wrong with them is then the answer, on every route.
    """
    if services.residency.is_shutting_down:
        raise ShuttingDown("the server is shutting down", retry_after_s=_RETRY_AFTER_S)
    model = services.catalog.resolve(name)
    if model.task_known and model.task not in tasks:
        suitable = [other.id for other in services.catalog.models if other.task_known and other.task in tasks]
        offer = f"suitable: {', '.join(suitable)}" if suitable else "the registry has no suitable model"
        raise WrongModelKind(f"{model.id!r} is {_KINDS[model.task]}; {offer}", param="model")
    if model.error is not None:
        services.residency.note_files(model)
        raise model.error
    return model
