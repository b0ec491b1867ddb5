"""Grammars, compiled and checked before any work is done for their request."""

from __future__ import annotations

import threading
from functools import lru_cache

import numpy as np
from llguidance import LLMatcher, LLParserLimits
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from engines.errors import InvalidField
from engines.text.constraints.deep_stack import on_deep_stack
from engines.text.constraints.source import LONGEST
from engines.text.constraints.vocabulary import GrammarVocabulary

__all__ = ["CompiledGrammar", "GrammarCompiler"]

_KEPT = 64  # compiled grammars; most take tens of kilobytes
_SHOWN = 300  # characters of llguidance's own words

# What a hostile grammar may take, in llguidance's units: of the compiler (fuel is 50,000 a millisecond, the size is symbols)
# and of one step of one row (fuel is 14,000 a millisecond, items 20,000). A lexer state takes some 2 kB.
_LIMITS = LLParserLimits(
    max_items_in_row=10_000,  # an optional property of an object takes 4
    initial_lexer_fuel=1_000_000,
    max_grammar_size=500_000,
    step_lexer_fuel=200_000,
    step_max_items=20_000,
    max_lexer_states=50_000,
    verbose_errors=False,  # else errors quote the answer
)


class CompiledGrammar:
    """A grammar at its beginning, which rows take copies of. Threads may share it."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._lock = threading.Lock()
        self.accepts_nothing: bool = matcher.is_accepting()
        """Whether an empty answer matches."""

    def matcher(self) -> LLMatcher:
        """A new one, at the grammar's beginning, for one row."""
        with self._lock:  # llguidance refuses a matcher that another thread is using
            return self._matcher.deep_copy()


class GrammarCompiler:
    """Grammars of one model. Keeps those last used; threads may share it."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._kept = lru_cache(_KEPT)(lambda grammar: on_deep_stack(lambda: self._compile(grammar)))

    def compile(self, grammar: str, field: str) -> CompiledGrammar:
        """``grammar`` as :func:`engines.text.constraints.source.written` makes it.

        InvalidField, naming ``field``: it is no grammar, uses what cannot be enforced, nothing matches it, or it is too large.
        """
        if len(grammar) > 2 * LONGEST:
            raise InvalidField(f"{field}: the grammar has {len(grammar)} characters, which is too long", param=field)
        try:
            return self._kept(grammar)
        except _Refused as refusal:
            raise InvalidField(f"{field}: {refusal}", param=field) from refusal

    def _compile(self, grammar: str) -> CompiledGrammar:
        matcher = LLMatcher(self._vocabulary.table, grammar, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise _Refused(f"this cannot be enforced: {_reason(matcher)}")
        if not self._begins(matcher):
            raise _Refused("nothing can match this")
        matcher.consume_tokens(matcher.compute_ff_tokens())
        self._begins(matcher)  # what stands behind the only possible beginning may be too much at once
        if matcher.is_error():
            raise _Refused(f"this is too complex: {_reason(matcher)}")
        matcher.reset()
        return CompiledGrammar(matcher)

    def _begins(self, matcher: LLMatcher) -> bool:
        """Whether some token may come next, or the answer end. llguidance tells only when it looks for a token."""
        mask = allocate_token_bitmask(1, self._vocabulary.size)
        fill_next_token_bitmask(matcher, mask)
        return not matcher.is_error() and bool(np.any(mask))


class _Refused(Exception):
    """llguidance does not take the grammar; the message says why, for whatever field it came from."""


def _reason(matcher: LLMatcher) -> str:
    text = " ".join(matcher.get_error().split("\n<state>")[0].split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " …"
