"""Every route of a real gateway, fed what its own OpenAPI document allows and what it does not.

No input may bring forth a server error but those that say what the server cannot do now (501, 503, 507), nor a status, a media
type or a body that the document does not have. The same inputs at every run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings

from gateway.app import ROUTES
from gateway.protocols.openapi import document
from gateway.routes.openapi import endpoints

READY = "Innkeeper is ready at "
BOUND_S = 30.0
EXAMPLES = 15  # an operation and kind of data
MODELS = ("suitable", "suitable", "suitable", "other", "suitable", "broken", "suitable", "nobody")
KINDS = {"embed": "embedder", "rerank": "ranker", "score": "ranker"}  # what is in a path → a model for it; else sim
SAID = (501, 503, 507)  # what a server may say of itself
ENDLESS = "/admin/events"

REGISTRY = """
workers: {spare: 0}
models:
  - {id: sim, source: "sim:", context: 64, simulate: {weights: 1MiB}}
  - {id: embedder, source: "sim:", simulate: {weights: 1MiB, task: embedding}}
  - {id: ranker, source: "sim:", context: 64, simulate: {weights: 1MiB, task: rerank}}
  - {id: broken, source: ./nowhere.gguf}
"""

OPERATIONS = [
    (method, path)
    for path, methods in document(endpoints(ROUTES), "0")["paths"].items()
    for method in methods
    if method != "head" and path != ENDLESS
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a gateway of simulated models; at the end it must have lived, and exit 0."""
    directory: Path = tmp_path_factory.mktemp("gateway")
    (directory / "registry.yaml").write_text(REGISTRY)
    command = [
        sys.executable,
        "-m",
        "gateway.cli",
        "serve",
        "--registry",
        str(directory / "registry.yaml"),
        "--port",
        "0",
    ]
    environment = {**os.environ, "XDG_STATE_HOME": str(directory / "state")}
    with (
        (directory / "log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(READY), (directory / "log").read_text()
            yield line.removeprefix(READY).strip()
            assert process.poll() is None, (directory / "log").read_text()
            process.send_signal(signal.SIGTERM)
            assert process.wait(BOUND_S) == 0
        finally:
            process.kill()


@pytest.fixture(scope="module")
def schema(gateway: str) -> Any:
    """The gateway's own document, as schemathesis reads it."""
    # Here: importing it takes a second that every collection of tests would pay.
    import schemathesis

    return schemathesis.openapi.from_dict(requests.get(f"{gateway}/openapi.json", timeout=BOUND_S).json())


def examine(gateway: str, operation: Any, mode: Any, **fixed: Any) -> None:
    """Sends generated requests of this kind and holds each answer against the document."""
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    suitable = next((model for part, model in KINDS.items() if part in operation.path), "sim")
    names = {"suitable": suitable, "other": "sim" if suitable != "sim" else "embedder"}
    models = cycle(names.get(model, model) for model in MODELS)
    checks = [status_code_conformance, content_type_conformance, response_schema_conformance]

    @given(case=operation.as_strategy(mode, **fixed))
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any) -> None:
        if isinstance(case.body, dict) and mode is GenerationMode.POSITIVE and "/admin/" not in operation.path:
            case.body["model"] = next(models)
        response = case.call(base_url=gateway, timeout=BOUND_S)
        assert response.status_code < 500 or response.status_code in SAID, (case.as_curl_command(), response.text)
        if mode is GenerationMode.NEGATIVE and operation.body and operation.body[0].is_required:
            assert response.status_code >= 400, (case.as_curl_command(), response.text)
        case.validate_response(response, checks=checks)

    send()


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_answers_are_those_of_the_document(gateway: str, schema: Any, method: str, path: str) -> None:
    from schemathesis import GenerationMode

    operation = schema[path][method.upper()]
    examine(gateway, operation, GenerationMode.POSITIVE)
    if "{id}" in path:
        examine(gateway, operation, GenerationMode.POSITIVE, path_parameters={"id": "sim"})
    if operation.body or operation.query:
        examine(gateway, operation, GenerationMode.NEGATIVE)
