"""A prompt as the beginning of the answer's text, beside its tokens as they are scored."""

from __future__ import annotations

from collections.abc import Sequence

from engines.text.detokenizer import Detokenizer
from engines.wire import TextDelta, TokenLogprob

__all__ = ["EchoedPrompt"]


class EchoedPrompt:
    """One request's. Stop strings are not looked for in it.

    Args:
        request_id: of the request.
        text: the prompt's, exactly.
        tokens: the prompt's.
        detokenizer: says how much of the text some of the tokens are.
        waits_for_scores: its tokens' scores were asked for.
    """

    def __init__(
        self, request_id: int, text: str, tokens: Sequence[int], detokenizer: Detokenizer, *, waits_for_scores: bool
    ) -> None:
        self.waits_for_scores = waits_for_scores
        self._request_id = request_id
        self._text = text
        self.tokens = tuple(tokens)
        self._detokenizer = detokenizer
        self._reported = 0  # tokens
        self._spelled = 0  # characters of those, as the detokeniser has them
        self._sent = 0  # characters of the text

    def whole(self) -> TextDelta:
        """All of it, without scores."""
        return TextDelta(request_id=self._request_id, text=self._text)

    def scored(self, start: int, entries: Sequence[TokenLogprob]) -> TextDelta | None:
        """The tokens from ``start`` on; None where they have been reported before, since a prompt may be read again.

        Deltas make up the text exactly, also where its tokens spell it otherwise.
        """
        fresh = entries[self._reported - start :]
        if not fresh:
            return None
        self._reported += len(fresh)
        self._spelled += sum(len(self._detokenizer.add(entry.token)) for entry in fresh)
        end = len(self._text) if self._reported == len(self.tokens) else min(self._spelled, len(self._text))
        text, self._sent = self._text[self._sent : end], end
        return TextDelta(request_id=self._request_id, text=text, logprobs=tuple(fresh))
