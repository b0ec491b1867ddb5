"""The tokenizer process over its bare socket: a real one, and its loop with a tokenizer that a test holds up."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engines.gguf.tokenizer import GgufTokenizer
from engines.header import read_header
from engines.text.chat_prompt import ChatEncoder
from engines.tokenizer_cache import TextTokens, TokenizerCache, WordTokens
from engines.tokenizer_worker import TokenizerWorker
from engines.wire import (
    Answered,
    Ask,
    ChatMessage,
    ChatPrompt,
    Chunk,
    DecodeTokens,
    EncodeChat,
    EncodeText,
    Forget,
    FrameDecoder,
    FrameError,
    FromTokenizer,
    Hello,
    Refused,
    TokenizerAnswer,
    TokenizerRequest,
    TokenizerSource,
    ask_frames,
    decode_answer,
    decode_from_tokenizer,
    encode_frame,
)

BOUND_S = 30.0
PROJECT = Path(__file__).parents[2]
SIM = TokenizerSource(key="sim:a", path=None)


class Peer:
    """The gateway's end."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(BOUND_S)
        self.socket = connection
        self._decoder = FrameDecoder()
        self._messages = self._read()

    def _read(self) -> Iterator[FromTokenizer]:
        while data := self.socket.recv(65536):
            yield from map(decode_from_tokenizer, self._decoder.feed(data))

    def next(self) -> FromTokenizer:
        return next(self._messages)

    def ask(self, request_id: int, request: TokenizerRequest) -> None:
        self.socket.sendall(b"".join(ask_frames(request_id, request)))

    def answer(self) -> tuple[int, TokenizerAnswer]:
        """The next answer, whole."""
        parts = bytearray()
        while isinstance(message := self.next(), Chunk):
            parts += message.data
        assert isinstance(message, Answered), message
        return message.request_id, message.answer or decode_answer(bytes(parts))


def words(text: str, source: TokenizerSource = SIM) -> TokenizerRequest:
    return TokenizerRequest(source=source, what=EncodeText(text=text, add_special=True, parse_special=False))


@contextmanager
def process() -> Iterator[tuple[Peer, subprocess.Popen[str]]]:
    ours, theirs = socket.socketpair()
    command = [
        sys.executable,
        "-m",
        "engines.tokenizer_worker",
        "--fd",
        str(theirs.fileno()),
        "--parent",
        str(os.getpid()),
    ]
    with (
        ours,
        subprocess.Popen(command, cwd=PROJECT, pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, text=True) as it,
    ):
        theirs.close()
        peer = Peer(ours)
        try:
            yield peer, it
        finally:
            it.kill()


@contextmanager
def loop(build: Callable[[TokenizerSource], TextTokens], threads: int = 2) -> Iterator[Peer]:
    """The process's loop in a thread of this one."""
    ours, theirs = socket.socketpair()
    worker = TokenizerWorker(theirs, TokenizerCache(build=build), threads=threads)
    thread = threading.Thread(target=worker.serve, daemon=True)
    thread.start()
    with ours:
        peer = Peer(ours)
        assert isinstance(peer.next(), Hello)
        yield peer
    thread.join(BOUND_S)
    assert not thread.is_alive()
    theirs.close()


def test_process_says_hello_answers_niced_without_mlx_and_ends_with_its_socket(smollm2_path: Path) -> None:
    with process() as (peer, it):
        hello = peer.next()
        assert isinstance(hello, Hello)
        assert hello.pid == it.pid
        peer.ask(1, words("hello world", TokenizerSource(key="k", path=str(smollm2_path))))
        assert peer.answer() == (1, TokenizerAnswer(tokens=(28120, 905)))
        if sys.platform == "linux":
            assert os.getpriority(os.PRIO_PROCESS, it.pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
            assert "libmlx" not in Path(f"/proc/{it.pid}/maps").read_text()
        peer.socket.close()
        assert it.wait(BOUND_S) == 0


def test_process_breach_of_protocol_ends_it_with_status_1() -> None:
    with process() as (peer, it):
        peer.next()
        peer.socket.sendall(encode_frame(Hello(pid=1)))
        assert it.wait(BOUND_S) == 1
        assert it.stderr is not None
        assert "broke the protocol" in it.stderr.read()


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_process_does_not_outlive_its_parent() -> None:
    with process() as (peer, it):
        peer.next()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "engines.tokenizer_worker", "--fd", str(theirs.fileno()), "--parent", "1"]
        orphan = subprocess.run(command, cwd=PROJECT, pass_fds=(theirs.fileno(),), timeout=BOUND_S, check=False)
    assert orphan.returncode == 0  # at once: its parent is another than it was told
    assert it.returncode is not None


def test_process_ids_are_those_of_the_worker_of_the_same_file(smollm2_path: Path) -> None:
    tokenizer = GgufTokenizer.from_metadata(read_header(smollm2_path).metadata)
    source = TokenizerSource(key="k", path=str(smollm2_path))
    prompt = ChatPrompt(messages=(ChatMessage(role="user", content="hi <|im_end|>"),))
    with process() as (peer, _):
        peer.next()
        chat = TokenizerRequest(
            source=source, what=EncodeChat(prompt=prompt, add_special=True, continues=True), texts=True, pieces=True
        )
        peer.ask(1, chat)
        _, answer = peer.answer()
        assert list(answer.tokens) == ChatEncoder(tokenizer).tokens(prompt)
        assert answer.texts == tuple(map(tokenizer.token_text, answer.tokens))
        assert b"".join(answer.pieces).decode() == tokenizer.decode(answer.tokens, skip_special=False)
        peer.ask(2, TokenizerRequest(source=source, what=DecodeTokens(tokens=answer.tokens)))
        assert peer.answer() == (2, TokenizerAnswer(text=tokenizer.decode(answer.tokens, skip_special=False)))
        special = EncodeText(text="<|im_end|>", add_special=False, parse_special=True)
        peer.ask(3, TokenizerRequest(source=source, what=special))
        assert peer.answer() == (3, TokenizerAnswer(tokens=(2,)))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
def test_process_template_that_asks_for_the_machine_s_memory_is_refused(smollm2_path: Path) -> None:
    greedy = "{{ ('\"' * 16000000)" + " | tojson" * 30 + " }}"  # each doubles it: 16 PiB
    prompt = ChatPrompt(messages=(ChatMessage(role="user", content="hi"),), template=greedy)
    source = TokenizerSource(key="k", path=str(smollm2_path))
    with process() as (peer, _):
        peer.next()
        what = EncodeChat(prompt=prompt, add_special=True, continues=True)
        peer.ask(1, TokenizerRequest(source=source, what=what))
        refused = peer.next()
        assert isinstance(refused, Refused)
        assert refused.error.code == "invalid_request_error"
        assert "MemoryError" in refused.error.message
        peer.ask(2, words("hello world", source))
        assert peer.answer() == (2, TokenizerAnswer(tokens=(28120, 905)))


def test_process_requests_and_answers_larger_than_a_frame() -> None:
    text = "w7 " * 200_000
    with process() as (peer, _):
        peer.next()
        peer.ask(1, words(text))
        request_id, answer = peer.answer()
        assert (request_id, answer.tokens) == (1, (7,) * 200_000)


def test_loop_large_vocabulary_keeps_only_its_own_askers_waiting() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def build(source: TokenizerSource) -> TextTokens:
        if source.key == "large":
            begun.set()
            assert go_on.wait(BOUND_S)
        return WordTokens()

    with loop(build) as peer:  # two threads: one builds, none may wait for it
        for number in (1, 2, 3):
            peer.ask(number, words("w1", TokenizerSource(key="large", path=None)))
        assert begun.wait(BOUND_S)
        peer.ask(4, words("w4"))
        assert peer.answer()[0] == 4
        go_on.set()
        assert sorted(peer.answer()[0] for _ in range(3)) == [1, 2, 3]


def test_loop_forgotten_request_is_not_answered() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def build(_source: TokenizerSource) -> TextTokens:
        begun.set()
        assert go_on.wait(BOUND_S)
        return WordTokens()

    with loop(build, threads=1) as peer:
        peer.ask(1, words("w1"))
        assert begun.wait(BOUND_S)
        peer.ask(2, words("w2"))
        peer.socket.sendall(encode_frame(Forget(request_id=2)) + encode_frame(Forget(request_id=99)))
        peer.ask(3, words("w3"))
        go_on.set()
        assert [peer.answer()[0], peer.answer()[0]] == [1, 3]


def test_loop_what_breaks_one_request_breaks_no_other() -> None:
    def build(source: TokenizerSource) -> TextTokens:
        if source.key == "broken":
            raise RuntimeError("boom " * 100_000)
        if source.key == "gone":
            raise FileNotFoundError(2, "No such file", "/x.gguf")
        return WordTokens()

    with loop(build) as peer:
        peer.ask(1, words("x", TokenizerSource(key="broken", path=None)))
        refused = peer.next()
        assert isinstance(refused, Refused)
        assert (refused.error.code, refused.error.message[:40]) == (
            "internal_error",
            "The request could not be answered: boom ",
        )
        peer.ask(2, words("x", TokenizerSource(key="gone", path=None)))
        refused = peer.next()
        assert isinstance(refused, Refused)
        assert (refused.error.code, refused.error.message) == ("model_load_failed", "/x.gguf: No such file")
        peer.ask(3, TokenizerRequest(source=SIM, what=DecodeTokens(tokens=(-1,))))
        refused = peer.next()
        assert isinstance(refused, Refused)
        assert (refused.error.code, refused.error.param) == ("invalid_request_error", "tokens[0]")
        peer.ask(4, words("w4"))
        assert peer.answer()[0] == 4


def test_loop_ask_without_its_body_is_a_breach() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encode_frame(Ask(request_id=1)))
        with pytest.raises(FrameError, match="without a body"):
            TokenizerWorker(theirs, threads=1).serve()
