"""Rows of mixtures and of models with latents, windows, sinks and chunks, served: they get what they get alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.footprint import active_parameters, estimate
from engines.gguf.model import build_model
from engines.header import read_header
from engines.scheduling.admission import KvAdmission, KvCost
from engines.text.batcher import Batcher, can_batch
from engines.text.row import Row
from tests.engines.gguf.families import test_deepseek2, test_exaone_moe, test_gpt_oss, test_llama4, test_qwen3moe
from tests.engines.gguf.families.helpers_family import VOCABULARY, Case, floats_of, write_case
from tests.engines.text.helpers_rows import GREEDY, FixedPacer, continue_alone, tokens_of

SERVED = [
    test_deepseek2.CASES[0],
    test_gpt_oss.CASES[0],
    test_exaone_moe.CASES[0],
    test_llama4.CASES[0],
]


def row(row_id: int, length: int) -> Row:
    prompt = tuple((7 * i + 13 * row_id) % VOCABULARY for i in range(length))
    return Row(row_id, prompt, 18, least_tokens=length + 1, expected_tokens=length + 2, sampling=GREEDY)


@pytest.mark.parametrize("case", SERVED, ids=[case.id for case in SERVED])
def test_rows_get_what_they_get_alone(case: Case, tmp_path: Path) -> None:
    """With a grant that two long rows outgrow, where more than one can be held."""
    built = build_model(read_header(write_case(tmp_path / "rows.gguf", case, floats_of(case)[1])))
    cost = KvCost(built.kv_bytes_per_token, built.kv_window_bytes_per_token, built.kv_window_tokens)
    batcher = Batcher(
        built.model,
        width=4 if can_batch(built.model) and built.most_rows is None else 1,
        eos_ids=frozenset({VOCABULARY}),
        admission=KvAdmission(cost, 2 * cost.row_bytes(512)),
        pacer=FixedPacer(96),
    )
    rows = [row(0, 240), row(1, 30), row(2, 238)]
    for each in rows:
        batcher.submit(each)
    events: list[Any] = []
    for _ in range(400):
        if not batcher.busy:
            break
        events += batcher.step()
    for each in rows:
        assert tokens_of(events, each.id) == continue_alone(built.model, each, frozenset())


def test_footprint_of_a_mixture_counts_the_experts_of_a_token(tmp_path: Path) -> None:
    case = test_qwen3moe.CASES[0]
    header = read_header(write_case(tmp_path / "experts.gguf", case, floats_of(case)[1]))
    more = read_header(write_case(tmp_path / "more.gguf", case, floats_of(case)[1], {"expert_used_count": 8}))
    experts = 3 * 3 * 8 * 32 * 64  # layers, projections, experts
    assert active_parameters(more) - active_parameters(header) == experts * 5 // 8
    numbers = 3 * 32 + 2 * 64  # gate, up and product; two answers
    assert estimate(more).transient_bytes - estimate(header).transient_bytes == 512 * 4 * 5 * numbers


@pytest.mark.parametrize("case", test_deepseek2.CASES[:2], ids=["v3", "v2"])
def test_footprint_of_a_latent_is_of_what_the_cache_keeps(case: Case, tmp_path: Path) -> None:
    header = read_header(write_case(tmp_path / "latent.gguf", case, floats_of(case)[1]))
    assert estimate(header).kv_bytes_per_token == 3 * (32 + 16) * 4
