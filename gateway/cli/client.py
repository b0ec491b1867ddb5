"""What client commands use to talk to a running gateway, over the same HTTP as everybody else."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from typing import Any
from urllib.parse import quote

import httpx

from gateway.cli.output import CliError

__all__ = ["DEFAULT_URL", "GatewayClient", "RequestRefused"]

DEFAULT_URL = "http://127.0.0.1:8000"
_CONNECT_S = 5.0
_READ_S = 330.0  # a request may wait for a model to load before the first byte (``load_timeout_s`` is 300)


class RequestRefused(CliError):
    """The gateway answered with an error; the message is its own, ``code`` too ("" where it told none)."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class GatewayClient:
    """One gateway: ``INNKEEPER_URL``, with the key in ``INNKEEPER_API_KEY``. A context manager. Raises CliError only."""

    def __init__(self) -> None:
        self.url = _base_url(os.environ.get("INNKEEPER_URL") or DEFAULT_URL)
        key = os.environ.get("INNKEEPER_API_KEY")
        self._http = httpx.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(_READ_S, connect=_CONNECT_S),
            trust_env=False,  # a proxy of the environment has no part in talking to the local network
        )

    def __enter__(self) -> GatewayClient:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._http.close()

    def models(self) -> list[dict[str, Any]]:
        """The models the gateway offers, as ``/v1/models`` tells them."""
        try:
            return list(self.ask("GET", "/v1/models")["data"])
        except (KeyError, TypeError) as error:
            raise self._stranger() from error

    def model(self, name: str) -> dict[str, Any]:
        """One of them, by id or alias, as ``/admin/models`` tells it."""
        return self.ask("GET", f"/admin/models/{quote(name, safe='/:')}")

    def ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, patient: bool = False, **query: str
    ) -> dict[str, Any]:
        """The object that the gateway answers with. ``patient``: however long it takes."""
        timeout = httpx.Timeout(None, connect=_CONNECT_S) if patient else self._http.timeout
        with self._errors():
            response = self._http.request(method, path, json=body, params=query or None, timeout=timeout)
            self._check(response)
        try:
            answer = response.json()
        except ValueError as error:
            raise self._stranger() from error
        if not isinstance(answer, dict):
            raise self._stranger()
        return answer

    def ask_of_model(self, model: str, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """A verb of ``/admin/models``; returns when it is done, however long that takes."""
        return self.ask("POST", f"/admin/models/{quote(model, safe='/:')}/{verb}", body, patient=True)

    def events(self) -> Generator[tuple[str, dict[str, Any]], None, None]:
        """Names and data of ``/admin/events``, until the gateway ends. Closing the iterator ends the stream."""
        with self._errors(), self._http.stream("GET", "/admin/events") as response:
            if response.is_error:
                response.read()
                self._check(response)
            name = ""
            for line in response.iter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)

    def chat(self, body: dict[str, Any]) -> Generator[str, None, None]:
        """Streams a chat answer's text. Closing the iterator cancels the answer. RequestRefused carries the server's words."""
        with (
            self._errors(),
            self._http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response,
        ):
            if response.is_error:
                response.read()
                self._check(response)
            for line in response.iter_lines():
                data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                if data == "[DONE]":
                    return
                if data:
                    yield _delta(json.loads(data))
        raise CliError(f"{self.url} ended the answer without its end marker: it may have been stopped")

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        code = ""
        try:
            error = response.json()["error"]
            message, code = str(error["message"]), str(error.get("code") or "")
        except (ValueError, KeyError, TypeError, AttributeError):
            message = f"{self.url} answers with status {response.status_code}: is INNKEEPER_URL right?"
        if response.status_code == 401:
            message += " (set INNKEEPER_API_KEY)"
        if code == "insufficient_scope":
            message += " (set INNKEEPER_API_KEY to a key that has it)"
        raise RequestRefused(message, code)

    def _stranger(self) -> CliError:
        return CliError(f"{self.url} answers, but not as Innkeeper does: is INNKEEPER_URL right?")

    def _errors(self) -> _HttpErrors:
        return _HttpErrors(self.url)


class _HttpErrors:
    """Turns httpx's errors into sentences."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            raise CliError(
                f"no gateway answers at {self._url}: start one with `innkeeper serve`, or set INNKEEPER_URL"
            ) from error
        if isinstance(error, httpx.TimeoutException):
            raise CliError(f"{self._url} has not answered for {_READ_S:.0f} s") from error
        if isinstance(error, httpx.HTTPError):
            raise CliError(f"the connection to {self._url} broke: {error}") from error


def _delta(event: dict[str, Any]) -> str:
    if "error" in event:
        raise RequestRefused(str(event["error"].get("message", "the answer was cut short by an error")))
    choices = event.get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""


def _base_url(text: str) -> str:
    """The gateway's URL without a trailing slash or ``/v1``, which people copy from OpenAI clients' settings."""
    url = text.strip().rstrip("/").removesuffix("/v1")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise CliError(f"INNKEEPER_URL is {text!r}, not a URL such as {DEFAULT_URL}")
    return url
