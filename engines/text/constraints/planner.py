"""From a request and the form of its answer to what the row is bound to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec.structs import replace

from engines.errors import InvalidField
from engines.text.answer_form import AnswerForm
from engines.text.constraints.bits import bits_of
from engines.text.constraints.compiler import CompiledGrammar, GrammarCompiler
from engines.text.constraints.marks import ThinkingMarks
from engines.text.constraints.row_constraint import ConstraintPlan
from engines.text.constraints.source import Source, json_source, lark_source, source_of, written
from engines.text.constraints.vocabulary import GrammarVocabulary
from engines.text.tool_syntax import ToolSyntax
from engines.text.tool_syntax.lark import Lark, argument_schema
from engines.wire import TextRequest, Tool, ToolUse

__all__ = ["ConstraintPlanner"]

_FORMATS = 4  # ways of thinking that are kept; a model has one, but for templates of requests


class ConstraintPlanner:
    """Plans for the requests of one model. Threads may share it.

    What binds an answer, by what the request has:

    =======================  ========  ===================================================================
    tools                    grammar   the answer is
    =======================  ========  ===================================================================
    required or named        any       one call or more, each as its function's schema has it
    ``auto``                 one       such calls, or the grammar's text
    ``auto``, some strict    none      any text, in which calls hold to the schemas of strict functions
    ``auto``, none strict    none      free
    ``none`` or no tools     one       the grammar's text
    =======================  ========  ===================================================================
    """

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._compiler = GrammarCompiler(vocabulary)
        tokenizer = vocabulary.tokenizer
        self._special = {tokenizer.token_text(id): id for id in sorted(tokenizer.special_ids)}
        self._marks = lru_cache(_FORMATS)(lambda reasoning: ThinkingMarks(vocabulary, reasoning))

    def plan(self, request: TextRequest, form: AnswerForm) -> ConstraintPlan | None:
        """None for an answer that nothing binds. InvalidField, naming the field, for what cannot be enforced."""
        grammar = self._grammar(request, form)
        budget = request.reasoning.budget
        marks = None
        if form.reasoning is not None and form.may_think and (grammar is not None or budget is not None):
            marks = self._marks(form.reasoning)
            marks.prepare()
        if grammar is None and (marks is None or budget is None):
            return None
        ends_thinking = form.syntax.marks if form.syntax is not None and form.syntax.closes_thinking else ()
        kept_back = [self._special[mark] for mark in ends_thinking if mark in self._special]
        return ConstraintPlan(
            self._vocabulary, grammar, marks, form.opened, budget, bits_of(kept_back, self._vocabulary.size)
        )

    def _grammar(self, request: TextRequest, form: AnswerForm) -> CompiledGrammar | None:
        use, syntax, grammar = request.tools, form.syntax, request.grammar
        if use is not None and syntax is not None:
            if use.choice == "required":
                return self._calls(use, syntax, "start: @calls", {})
            if grammar is not None:
                return self._calls(use, syntax, "start: @calls | @whole", self._whole(source_of(grammar), form))
            if any(tool.strict for tool in use.tools):
                return self._free_text(use, syntax)
            return None
        if grammar is None:
            return None
        return self._compiler.compile(
            written(lark_source("start: @whole"), self._whole(source_of(grammar), form)), grammar.field
        )

    def _whole(self, source: Source, form: AnswerForm) -> dict[str, Source]:
        """The grammar of an answer without calls; of a model that writes into channels, with the header of the last one."""
        if form.reasoning is None or not form.reasoning.channels:
            return {"whole": source}
        lark = Lark(self._special)
        header = lark.sequence(lark.repeated("<|start|>assistant", times="?"), "<|channel|>final<|message|>")
        return {"whole": lark_source(f"start: {header} @answer"), "answer": source}

    def _calls(self, use: ToolUse, syntax: ToolSyntax, start: str, others: dict[str, Source]) -> CompiledGrammar:
        """Calls of the tools that may be called, each as its schema has it, and whatever else ``start`` allows."""
        tools = {at: tool for at, tool in enumerate(use.tools) if use.name is None or tool.name == use.name}
        if not tools:
            raise InvalidField(f"tool_choice: there is no tool {use.name!r}", param="tool_choice")
        calls = syntax.grammar(list(tools.values()), parallel=use.parallel, special=self._special)
        assert calls is not None, "a grammar of calls alone"
        return self._compile_calls(tools, written(lark_source(start), {"calls": lark_source(calls), **others}))

    def _free_text(self, use: ToolUse, syntax: ToolSyntax) -> CompiledGrammar | None:
        """Any text, with calls in it that hold to the strict schemas; None for a syntax that cannot tell them from text."""
        tools = {
            at: tool if tool.strict else replace(tool, parameters={"type": "object"})
            for at, tool in enumerate(use.tools)
        }
        text = syntax.grammar(list(tools.values()), parallel=use.parallel, special=self._special, required=False)
        return None if text is None else self._compile_calls(tools, written(lark_source(text)))

    def _compile_calls(self, tools: Mapping[int, Tool], grammar: str) -> CompiledGrammar:
        """InvalidField names the tool, of those at these places in the request, whose schema cannot be enforced."""
        sources: dict[str, Source] = {}
        for at, tool in tools.items():
            field = f"tools[{at}].function.parameters"
            sources[field] = json_source(argument_schema(tool), field)
        try:
            compiled = self._compiler.compile(grammar, "tools")
            self._check(list(sources.values()))
        except InvalidField as refusal:
            for field, source in sources.items():
                self._compiler.compile(written(source), field)
            if refusal.param == "tools":
                raise
        return compiled

    def _check(self, schemas: Sequence[Source]) -> None:
        """InvalidField for schemas of which one cannot be enforced.

        A syntax that writes arguments in a form of its own keeps some schemas in that form only, and would not notice.
        """
        names = [f"schema{i}" for i in range(len(schemas))]
        start = lark_source("start: " + " | ".join(f"@{name}" for name in names))
        self._compiler.compile(written(start, dict(zip(names, schemas, strict=True))), "schemas")
