"""Every mode of the text routes, as golden transcripts: the request, what the worker is asked and says, the answer's bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gateway.protocols.helpers_transcripts import FILES, performed, read_transcript


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_transcript_is_what_the_code_does(file: Path) -> None:
    transcript = read_transcript(file)
    assert performed(transcript) == transcript
    assert transcript.text == file.read_text(encoding="utf-8")


STREAMED = [file for file in FILES if read_transcript(file).answer.startswith("data: ")]


@pytest.mark.parametrize("file", STREAMED, ids=lambda file: file.stem)
def test_stream_begins_each_choice_once_ends_it_once_and_then_itself(file: Path) -> None:
    transcript = read_transcript(file)
    *events, end, nothing = transcript.answer.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert all(
        set(chunk) >= {"id", "object", "created", "model", "choices"} for chunk in chunks if "error" not in chunk
    )
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    failed = any("error" in chunk for chunk in chunks)
    for index in {choice["index"] for choice in choices}:
        own = [choice for choice in choices if choice["index"] == index]
        if "chat" in transcript.path:
            assert [choice["delta"].get("role") for choice in own] == ["assistant", *[None] * (len(own) - 1)]
        reasons = [choice["finish_reason"] for choice in own]
        assert reasons[:-1] == [None] * (len(reasons) - 1)
        assert failed or reasons[-1] is not None


LINES = [file for file in FILES if file.stem.startswith("ollama_") and "_streamed" in file.stem]


@pytest.mark.parametrize("file", LINES, ids=lambda file: file.stem)
def test_lines_are_objects_of_which_the_last_alone_is_the_end(file: Path) -> None:
    *lines, nothing = read_transcript(file).answer.split("\n")
    assert nothing == ""
    objects = [json.loads(line) for line in lines]
    if "error" in objects[-1]:
        assert objects.pop() == {"error": "the model's worker ended"}
    else:
        assert objects[-1]["done_reason"] and objects.pop()["done"]
    said = "response" if "generate" in file.stem else "message"
    assert all(not line["done"] and said in line and line["created_at"].endswith("Z") for line in objects)
