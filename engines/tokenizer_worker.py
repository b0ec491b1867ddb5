"""The tokenizer process: token ids for models that need not be loaded (``python -m engines.tokenizer_worker --fd N --parent PID``).

::

    main thread          reads frames ──> jobs ──> threads: build or find the tokenizer, answer, write the answer's frames

One process serves every model of the gateway. It has no MLX and no weights, runs at low priority, and ends with its socket: the
gateway closes that when nobody has asked for a while. A job whose tokenizer is being built by another thread is put back until it
is, so that a large vocabulary keeps nobody waiting but those who ask for it.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue

import msgspec

from engines.errors import EngineError
from engines.parent_death import die_with_parent
from engines.tokenizer_cache import TextTokens, TokenizerCache, answer
from engines.wire import (
    Ask,
    Chunk,
    Forget,
    FrameDecoder,
    FrameError,
    Hello,
    Refused,
    TokenizerRequest,
    ToTokenizer,
    WireError,
    answer_frames,
    decode_to_tokenizer,
    decode_tokenizer_request,
    encode_frame,
    to_wire,
)
from engines.worker_channel import ChunkAssembler

__all__ = ["TokenizerWorker", "main"]

THREADS = (
    8  # requests worked on at a time; they share one core's worth of Python, so that a short one passes a long one
)
_NICENESS = 10
_MOST_MEMORY_BYTES = 2 * 1024**3  # ten times what it needs; clients may send templates, which may ask for any amount
_READ_BYTES = 64 * 1024
_MESSAGE_CHARS = 10_000  # a template may raise an error as long as its messages; a frame holds less

logger = logging.getLogger("innkeeper.tokenizer")


@dataclass(frozen=True)
class _Job:
    request_id: int
    body: TokenizerRequest | bytes
    tokenizer: Future[TextTokens] | None = None  # done, where this job has waited for it


class TokenizerWorker:
    """``serve`` runs for as long as the gateway keeps its end of ``connection``, a blocking socket, open."""

    def __init__(self, connection: socket.socket, cache: TokenizerCache | None = None, threads: int = THREADS) -> None:
        self._connection = connection
        self._cache = cache or TokenizerCache()
        self._threads = threads
        self._chunks = ChunkAssembler()  # the reader's
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._wanted: set[int] = set()  # asked, neither answered nor forgotten
        self._writing = threading.Lock()

    def serve(self) -> None:
        """Returns at the end of file. FrameError when the gateway breaks the protocol."""
        for number in range(self._threads):
            threading.Thread(target=self._work, name=f"tokenize {number}", daemon=True).start()
        self._write([encode_frame(Hello(pid=os.getpid()))])
        decoder = FrameDecoder()
        while data := self._connection.recv(_READ_BYTES):
            for body in decoder.feed(data):
                self._receive(decode_to_tokenizer(body))

    def _receive(self, message: ToTokenizer) -> None:
        match message:
            case Chunk():
                self._chunks.add(message)
            case Ask(request_id=request_id, request=request):
                self._wanted.add(request_id)
                body = self._chunks.take_request(request_id) if request is None else request
                self._jobs.put(_Job(request_id, body))
            case Forget(request_id=request_id):
                self._chunks.discard(request_id)
                self._wanted.discard(request_id)

    # --- threads ---

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job.request_id not in self._wanted:
                continue
            frames = self._frames(job)
            if frames is not None:
                self._wanted.discard(job.request_id)
                self._write(frames)

    def _frames(self, job: _Job) -> list[bytes] | None:
        """The answer's; None where the job has been put back."""
        try:
            request = decode_tokenizer_request(job.body) if isinstance(job.body, bytes) else job.body
            tokenizer = job.tokenizer or self._cache.get(request.source)
            if not tokenizer.done():
                tokenizer.add_done_callback(self._put_back(_Job(job.request_id, request, tokenizer)))
                return None
            return answer_frames(job.request_id, answer(tokenizer.result(), request))
        except EngineError as error:
            failure = to_wire(error)
        except OSError as error:
            failure = WireError(
                code="model_load_failed", message=f"{error.filename or 'the file'}: {error.strerror or error}"
            )
        except (Exception, SystemExit) as error:
            logger.exception("a request could not be answered")
            failure = WireError(code="internal_error", message=f"The request could not be answered: {error}")
        failure = msgspec.structs.replace(failure, message=failure.message[:_MESSAGE_CHARS])
        return [encode_frame(Refused(request_id=job.request_id, error=failure))]

    def _put_back(self, job: _Job) -> Callable[[Future[TextTokens]], None]:
        return lambda _future: self._jobs.put(job)

    def _write(self, frames: list[bytes]) -> None:
        """One answer at a time, however slowly the gateway reads."""
        try:
            with self._writing:
                for data in frames:
                    self._connection.sendall(data)
        except OSError:
            pass  # the gateway is gone, which the reader sees too


def _bound_memory() -> None:
    """A request that asks for more ends with a MemoryError, before the machine runs out. Linux: macOS does not keep such limits."""
    if sys.platform != "linux":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = _MOST_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(_MOST_MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m engines.tokenizer_worker", description="The gateway's tokenizer.")
    parser.add_argument("--fd", type=int, required=True, help="inherited descriptor of the socket to the gateway")
    parser.add_argument("--parent", type=int, required=True, help="process id of the gateway")
    options = parser.parse_args(arguments)
    die_with_parent(options.parent)
    os.nice(_NICENESS)
    _bound_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the gateway's to answer
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    connection = socket.socket(fileno=options.fd)
    connection.setblocking(True)
    status = 0
    try:
        TokenizerWorker(connection).serve()
    except FrameError as error:
        logger.error("the gateway broke the protocol: %s", error)
        status = 1
    except OSError as error:
        logger.info("the gateway is gone: %s", error)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)  # threads may be in the middle of what nobody waits for


if __name__ == "__main__":
    main()
