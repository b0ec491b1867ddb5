"""What of a request's text becomes which ids. The rest of preparing is tested through the engine."""

from __future__ import annotations

from typing import Any, cast

import pytest

from engines.text.preparation import RequestPreparer
from engines.wire import TextPrompt, TextRequest
from tests.engines.text.constraints.helpers_constraints import make_tokenizer


class _Unbound:
    """A planner that binds nothing."""

    def plan(self, request: TextRequest, form: Any) -> None:
        return None


def tokens(text: str, *, parse_special: bool) -> tuple[int, ...]:
    preparer = RequestPreparer(make_tokenizer("spm"), cast(Any, None), cast(Any, _Unbound()), 1000)
    return preparer.prepare(TextRequest(prompt=TextPrompt(text=text, parse_special=parse_special), max_tokens=1)).tokens


@pytest.mark.parametrize("text", ["a b", "<bos>a b"])
def test_text_whose_control_tokens_are_read_begins_with_one_bos_whoever_wrote_it(text: str) -> None:
    bos_id = make_tokenizer("spm").bos_id
    read = tokens(text, parse_special=True)
    assert (read[0], read.count(bos_id or 0)) == (bos_id, 1)


def test_text_keeps_control_tokens_as_text_unless_they_are_to_be_read() -> None:
    assert len(tokens("a<bos>b", parse_special=False)) > len(tokens("a<bos>b", parse_special=True))
