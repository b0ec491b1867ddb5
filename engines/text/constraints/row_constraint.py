"""What one row may draw next: its plan, and where the row stands in it.

::

    OPENING ──opening mark──> THINKING ──budget spent──> CLOSING
       │                         │ closing mark             │ its last token
       │ anything else           v                          v
       └────────────────────> BEHIND ──first token of the answer──> ANSWER

A row without a grammar leaves for FREE where it would come to BEHIND or ANSWER.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from llguidance import LLMatcher

from engines.text.constraints.bits import Bits, bits_of
from engines.text.constraints.compiler import CompiledGrammar
from engines.text.constraints.marks import ThinkingMarks
from engines.text.constraints.vocabulary import GrammarVocabulary

__all__ = ["ConstraintPlan", "RowConstraint"]

_LINE_BREAKS = 2  # behind a closing mark


@dataclass(frozen=True, eq=False)
class ConstraintPlan:
    """What a row is bound to. At least one of ``grammar`` and ``budget`` is given.

    Attributes:
        vocabulary: of the model.
        grammar: what the answer must match, behind its thinking.
        marks: of a model that may think in this answer; None where it does not.
        opened: the prompt ends inside thinking.
        budget: tokens of thinking after which it is closed.
        kept_back: tokens that may not come in thinking, where a grammar waits behind it; None: none.
    """

    vocabulary: GrammarVocabulary
    grammar: CompiledGrammar | None = None
    marks: ThinkingMarks | None = None
    opened: bool = False
    budget: int | None = None
    kept_back: Bits | None = None


class _Phase(Enum):
    OPENING = auto()  # nothing has been said yet but, it may be, a part of an opening mark
    THINKING = auto()
    CLOSING = auto()  # the closing mark is being written for the model
    BEHIND = auto()  # behind the closing mark, where models put a line break or two
    ANSWER = auto()  # the grammar alone says what may come
    FREE = auto()


class RowConstraint:
    """One row's position.

    Args:
        plan: what the row is bound to.
        answered: the answer's tokens so far. The last of them is yet to be pushed, as is the prompt's if there are none.
    """

    def __init__(self, plan: ConstraintPlan, answered: Sequence[int]) -> None:
        self.failure: str | None = None
        """Why the row cannot go on: its grammar took more work than is allowed."""
        self._plan = plan
        self._text = b""  # OPENING: the answer so far; THINKING: its end, which may hold a part of the closing mark
        self._thought = 0  # tokens
        self._closed = 0  # tokens of the closing mark
        self._line_breaks = 0
        self._matcher: LLMatcher | None = None
        self._awaits_prompt = not answered
        if plan.marks is None:
            self._begin_answer(_Phase.ANSWER)
        elif plan.opened:
            self._begin_thinking()
        else:
            self._phase = _Phase.OPENING
            self._begin_grammar()
        for token in answered[:-1]:
            self.push(token)

    @property
    def vocabulary_size(self) -> int:
        """Tokens in the model's vocabulary."""
        return self._plan.vocabulary.size

    @property
    def active(self) -> bool:
        """False once the row is free for good."""
        return self._phase is not _Phase.FREE and self.failure is None

    @property
    def binds(self) -> bool:
        """Whether something may not come next."""
        return self.active and (self._plan.grammar is not None or self._phase is _Phase.CLOSING)

    @property
    def matcher(self) -> LLMatcher | None:
        """The matcher that says what may come next, before :meth:`amend`; None where none has a say."""
        return self._matcher

    def push(self, token: int) -> None:
        """The row's next token; the prompt's last one first."""
        if self._awaits_prompt:
            self._awaits_prompt = False
            return
        match self._phase:
            case _Phase.OPENING:
                self._open(token)
            case _Phase.THINKING:
                self._think(token)
            case _Phase.CLOSING:
                self._closed += 1
                if self._closed == len(self._marks.closing):
                    self._begin_answer(_Phase.BEHIND)
            case _Phase.BEHIND:
                self._step_behind(token)
            case _Phase.ANSWER:
                assert self._matcher is not None
                self._matcher.consume_token(token)
        self._check()

    def amend(self, bits: Bits) -> None:
        """Adds to what the matcher allows, or takes from what is allowed where no matcher has a say."""
        self._check()
        match self._phase:
            case _Phase.OPENING:
                if self._matcher is None:
                    bits[:] = 0
                bits |= self._marks.begin(self._text)
            case _Phase.THINKING:
                bits &= ~self._marks.beyond(self._text)
                if self._plan.kept_back is not None:
                    bits &= ~self._plan.kept_back
                if self._plan.grammar is not None and not self._plan.grammar.accepts_nothing:
                    bits &= ~self._plan.vocabulary.end_bits
            case _Phase.CLOSING:
                bits[:] = bits_of(self._marks.closing[self._closed : self._closed + 1], self.vocabulary_size)
            case _Phase.BEHIND:
                for token, count in self._marks.newlines.items():
                    if self._line_breaks + count <= _LINE_BREAKS:
                        bits[token // 32] |= bits_of([token % 32], 32)[0]

    @property
    def _marks(self) -> ThinkingMarks:
        assert self._plan.marks is not None
        return self._plan.marks

    def _check(self) -> None:
        if self._matcher is not None and self._matcher.is_error():
            self.failure = f"its grammar became too complex ({self._matcher.stop_reason()})"

    def _begin_grammar(self) -> None:
        self._matcher = None if self._plan.grammar is None else self._plan.grammar.matcher()

    def _begin_answer(self, phase: _Phase) -> None:
        self._phase = phase if self._plan.grammar is not None else _Phase.FREE
        self._begin_grammar()

    def _open(self, token: int) -> None:
        marks = self._marks
        data = marks.text(token)
        text = (self._text + data).lstrip()
        if any(mark in text if self._watches else text.startswith(mark) for mark in marks.opens):
            self._begin_thinking()
            return
        if self._matcher is not None and self._matcher.try_consume_tokens([token]) != 1:
            self._matcher = None  # so this is a part of the mark
        if data and any(mark.startswith(text) for mark in marks.opens):
            self._text = text
        elif self._watches:
            self._text = _partial(text, marks.opens)
        else:
            self._phase = _Phase.FREE if self._plan.grammar is None else _Phase.ANSWER

    @property
    def _watches(self) -> bool:
        """Whether thinking may begin in the middle of the answer, which no grammar binds."""
        return self._marks.anywhere and self._plan.grammar is None

    def _begin_thinking(self) -> None:
        self._phase = _Phase.THINKING
        self._matcher = None
        self._text = b""
        self._spend(0)

    def _think(self, token: int) -> None:
        marks = self._marks
        text = self._text + marks.text(token)
        if any(mark in text for mark in marks.closes):
            # With a grammar nothing follows the mark within the token: see ThinkingMarks.beyond.
            self._begin_answer(_Phase.BEHIND)
            return
        self._text = _partial(text, marks.closes)
        self._spend(1)

    def _spend(self, tokens: int) -> None:
        self._thought += tokens
        if self._plan.budget is not None and self._thought >= self._plan.budget:
            self._phase = _Phase.CLOSING
            self._closed = 0

    def _step_behind(self, token: int) -> None:
        assert self._matcher is not None
        if self._matcher.try_consume_tokens([token]) == 1:
            self._phase = _Phase.ANSWER
        else:
            self._line_breaks += self._marks.newlines[token]


def _partial(text: bytes, marks: Sequence[bytes]) -> bytes:
    """The longest end of ``text`` that begins one of the marks."""
    longest = max(map(len, marks)) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return text[-length:]
    return b""
