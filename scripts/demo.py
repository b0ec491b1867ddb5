"""The main job, end to end: a gateway, two real models in K-quant GGUF files, the official OpenAI client.

Starts ``innkeeper serve`` on a free port with the shipped registry, lists the models, streams a chat answer from SmolLM2 and
a completion from Gemma, prints one line a model, and shuts the gateway down. Exits 0 when all of that worked.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

ROOT = Path(__file__).parents[1]
READY = "Innkeeper is ready at "
START_TIMEOUT_S = 60
CHAT_MODEL, COMPLETION_MODEL = "smollm2", "gemma-3-270m"


@dataclass
class Answer:
    """A streamed answer, with the client's own timing of it."""

    first_s: float = 0.0
    last_s: float = 0.0
    tokens: int = 0

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first."""
        return (self.tokens - 1) / (self.last_s - self.first_s) if self.last_s > self.first_s else 0.0


def main() -> int:
    with gateway() as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="not-needed", max_retries=0, timeout=150)
        print("Models:", ", ".join(model.id for model in client.models.list()))

        prompt = "In one short sentence: what does an innkeeper do?"
        print(f"\n[{CHAT_MODEL}] {prompt}")
        chat = show_chat(client, prompt)

        opening = "Four facts about the moon: it is"
        print(f"\n[{COMPLETION_MODEL}] {opening}", end="", flush=True)
        completion = show_completion(client, opening)

        print()
        for model, answer in ((CHAT_MODEL, chat), (COMPLETION_MODEL, completion)):
            print(summary(url, model, answer))
    print("\nThe gateway has shut down cleanly.")
    return 0


def show_chat(client: OpenAI, prompt: str) -> Answer:
    stream = client.chat.completions.create(
        model=CHAT_MODEL,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    return show((chunk.choices[0].delta.content if chunk.choices else None, chunk.usage) for chunk in stream)


def show_completion(client: OpenAI, prompt: str) -> Answer:
    stream = client.completions.create(
        model=COMPLETION_MODEL,
        prompt=prompt,
        max_tokens=16,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    return show((chunk.choices[0].text if chunk.choices else None, chunk.usage) for chunk in stream)


def show(pieces: Iterator[tuple[str | None, Any]]) -> Answer:
    """Prints text as it comes."""
    answer = Answer()
    for text, usage in pieces:
        if text:
            answer.last_s = time.perf_counter()
            answer.first_s = answer.first_s or answer.last_s
            print(text, end="", flush=True)
        if usage is not None:
            answer.tokens = usage.completion_tokens
    print()
    if answer.tokens < 1:
        raise SystemExit("demo: the stream ended without an answer")
    return answer


def summary(url: str, model: str, answer: Answer) -> str:
    """``NAME kernels=… load=… s decode=… tok/s memory=… MiB``, from the gateway's metrics and the client's clock."""
    families = httpx.get(f"{url}/v1/metrics", timeout=10).raise_for_status().json()

    def sample(family: str) -> tuple[dict[str, str], float]:
        for entry in families[family]["samples"]:
            if entry["labels"].get("model") == model:
                return entry["labels"], entry["value"]
        raise SystemExit(f"demo: {family} says nothing of {model}")

    kernels = sample("innkeeper_worker_info")[0]["kernels"]
    load_s = sample("innkeeper_worker_load_seconds")[1]
    memory = sample("innkeeper_worker_device_bytes")[1] / 1024**2
    return (
        f"{model} kernels={kernels} load={load_s:.2f} s decode={answer.decode_rate:.1f} tok/s memory={memory:.0f} MiB"
    )


@contextmanager
def gateway() -> Iterator[str]:
    """A running gateway's URL; it is shut down at the end, and its exit status must be 0."""
    command = [sys.executable, "-m", "gateway.cli", "serve", "--registry", str(ROOT / "registry.yaml"), "--port", "0"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield wait_until_ready(process)
            process.send_signal(signal.SIGTERM)
            status = process.wait(timeout=40)
            if status != 0:
                raise SystemExit(f"demo: the gateway exited with status {status}")
        except BaseException:
            log.seek(0)
            print(log.read(), file=sys.stderr)
            raise
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def wait_until_ready(process: subprocess.Popen[str]) -> str:
    """Reads the gateway's output up to the line with its URL."""
    assert process.stdout is not None
    deadline = time.monotonic() + START_TIMEOUT_S
    for line in process.stdout:
        if line.startswith(READY):
            return line.removeprefix(READY).strip()
        if time.monotonic() > deadline:
            break
    raise SystemExit("demo: the gateway did not start; its log is above")


if __name__ == "__main__":
    sys.exit(main())
