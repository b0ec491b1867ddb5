"""The text engine with a scripted model: token i is always followed by token i + 1, so that a text can be written down."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from engines.errors import ContextLengthExceeded, EngineFailed, InvalidField, RequestError, UnsupportedParameter
from engines.interface import EngineInfo, TextEngine
from engines.scheduling.admission import KvCost
from engines.text.engine import GgufTextEngine
from engines.wire import (
    Admitted,
    ChatMessage,
    ChatPrompt,
    Event,
    Failed,
    Finished,
    GrowRequest,
    InfillPrompt,
    PriorityCounts,
    Sampling,
    TextDelta,
    TextPrompt,
    TokenPrompt,
    Usage,
)
from tests.engines.text.helpers_engine import (
    PLAIN,
    ScriptChat,
    ScriptDetokenizer,
    ScriptModel,
    ScriptTokenizer,
    answer,
    ask,
    run,
    script_engine,
    submit,
    text_of,
)
from tests.engines.text.helpers_rows import EOS, VOCABULARY, stock_model


def test_it_is_a_text_engine() -> None:
    engine: TextEngine = script_engine(["a"])
    assert engine.info.width == 4


def test_the_end_of_sequence_ends_the_text_and_is_counted() -> None:
    text, end = answer(["Hel", "lo"])
    assert text == "Hello"
    assert end == Finished(request_id=1, reason="stop", usage=Usage(prompt_tokens=1, completion_tokens=3))


def test_max_tokens_ends_with_length() -> None:
    text, end = answer(["a", "b", "c", "d"], max_tokens=2)
    assert (text, end.reason, end.usage.completion_tokens) == ("ab", "length", 2)


def test_without_max_tokens_the_answer_runs_to_the_end_of_the_context() -> None:
    engine = script_engine(["x"] * 50, context=20)
    submit(engine, 1, ask(prompt=TokenPrompt(tokens=(0, 0, 0))))
    end = run(engine)[-1]
    assert end == Finished(request_id=1, reason="length", usage=Usage(prompt_tokens=3, completion_tokens=17))


def test_a_stop_string_over_tokens_never_leaks() -> None:
    text, end = answer(["the br", "own", " fox", " jumps"], stop=("own fox",))
    assert text == "the br"
    assert (end.reason, end.stop_sequence, end.usage.completion_tokens) == ("stop", "own fox", 3)


def test_what_was_held_back_for_a_stop_is_sent_at_the_end() -> None:
    assert answer(["a", "EN"], stop=("END",))[0] == "aEN"
    text, end = answer(["a", "EN", "x"], stop=("END",), max_tokens=2)
    assert (text, end.reason) == ("aEN", "length")


def test_a_stop_string_completed_by_the_last_token_is_a_stop() -> None:
    text, end = answer(["a", "EN", "D", "x"], stop=("END",), max_tokens=3)
    assert (text, end.reason, end.stop_sequence) == ("a", "stop", "END")


def test_a_stop_string_completed_by_the_flush_of_half_a_code_point_is_a_stop() -> None:
    text, end = answer(["a", "🙂".encode()[:2], "b"], stop=("\ufffd",), max_tokens=2)
    assert (text, end.reason, end.stop_sequence) == ("a", "stop", "\ufffd")


def test_a_code_point_over_tokens_is_sent_whole() -> None:
    emoji = "🙂".encode()
    engine = script_engine(["", "a", emoji[:1], emoji[1:3], emoji[3:], "b"])
    submit(engine, 1, ask())
    deltas = [(e.text, e.tokens) for e in run(engine) if isinstance(e, TextDelta)]
    assert deltas == [("a", (1,)), ("🙂", (2, 3, 4)), ("b", (5,))]


def test_half_a_code_point_is_flushed_at_the_end() -> None:
    text, _ = answer(["a", "🙂".encode()[:2]])
    assert text == "a\ufffd"


def test_a_stop_string_may_be_part_of_one_token() -> None:
    text, end = answer(["one. two.", " three"], stop=(".",))
    assert (text, end.stop_sequence) == ("one", ".")


def test_rows_of_one_batch_keep_their_texts_apart() -> None:
    engine = script_engine(list("abcdefghij"))
    submit(engine, 1, ask(0, max_tokens=4))
    submit(engine, 2, ask(4, stop=("h",)))
    submit(engine, 3, ask(7))
    events = run(engine)
    assert [text_of(events, i) for i in (1, 2, 3)] == ["bcde", "fg", "ij"]
    assert [e.request_id for e in events if isinstance(e, Admitted)] == [1, 2, 3]


# --- prepare ---


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"prompt": TokenPrompt(tokens=())}, InvalidField, ["prompt"]),
        ({"prompt": TextPrompt(text="")}, InvalidField, ["prompt"]),
        ({"prompt": ChatPrompt(messages=())}, InvalidField, ["messages"]),
        ({"prompt": TokenPrompt(tokens=(0, 4))}, InvalidField, ["4", "0 to 3"]),
        ({"prompt": TokenPrompt(tokens=(-1,))}, InvalidField, ["-1"]),
        ({"prompt": InfillPrompt(prefix="a", suffix="b")}, UnsupportedParameter, ["suffix"]),
        ({"stop": ("a", "")}, InvalidField, ["stop"]),
        ({"max_tokens": 0}, InvalidField, ["max_tokens", "0"]),
        ({"prompt": TextPrompt(text="x" * 20)}, ContextLengthExceeded, ["20", "20"]),
        ({"prompt": TextPrompt(text="x" * 31)}, ContextLengthExceeded, ["31", "20"]),
        ({"prompt": TextPrompt(text="x" * 15), "max_tokens": 6}, ContextLengthExceeded, ["15", "6", "21", "20"]),
    ],
)
def test_what_cannot_be_served_is_refused_before_any_work(
    fields: dict[str, Any], kind: type[RequestError], words: list[str]
) -> None:
    engine = script_engine(["a", "b", "c"], context=20)
    with pytest.raises(kind) as caught:
        engine.prepare(ask(**fields))
    assert all(word in caught.value.message for word in words)
    assert not engine.busy


def test_a_prompt_and_answer_that_fill_the_context_exactly_are_served() -> None:
    engine = script_engine(["a"] * 40, context=20)
    submit(engine, 1, ask(prompt=TextPrompt(text="x" * 15), max_tokens=5))
    assert isinstance(run(engine)[-1], Finished)


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (TextPrompt(text="x" * 20), "prompt"),
        (ChatPrompt(messages=(ChatMessage(role="user", content="x" * 20),)), "messages"),
    ],
)
def test_a_prompt_that_fills_the_context_is_refused_by_its_field_s_name(prompt: Any, field: str) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        script_engine(["a"], context=20).prepare(ask(prompt=prompt))
    assert caught.value.param == field


def test_max_tokens_that_are_a_bound_end_with_the_context() -> None:
    engine = script_engine(["a"] * 40, context=20)
    prepared = engine.prepare(ask(prompt=TextPrompt(text="x" * 15), max_tokens=32_000, clamp=True))
    assert (prepared.max_tokens, prepared.least_tokens, prepared.expected_tokens) == (5, 16, 20)
    with pytest.raises(ContextLengthExceeded) as caught:
        engine.prepare(ask(prompt=TextPrompt(text="x" * 20), max_tokens=32_000, clamp=True))
    assert (caught.value.tokens, caught.value.most_tokens) == (20, 19)


def test_a_chat_goes_through_the_chat_encoder() -> None:
    engine = script_engine(["a"])
    messages = (ChatMessage(role="system", content="abc"), ChatMessage(role="user", content="de"))
    assert engine.prepare(ask(prompt=ChatPrompt(messages=messages))).tokens == (0,) * 5


def test_an_infill_prompt_goes_through_the_tokenizer() -> None:
    class InfillTokenizer(ScriptTokenizer):
        def encode_infill(self, prefix: str, suffix: str) -> list[int] | None:
            return [len(prefix), len(suffix)]

    engine = script_engine([], tokenizer=InfillTokenizer("abcd"))
    prepared = engine.prepare(ask(prompt=InfillPrompt(prefix="xxx", suffix="y")))
    assert (prepared.tokens, prepared.continues) == ((3, 1), True)


def test_a_space_that_begins_the_answer_is_kept_where_it_goes_on_with_the_prompt() -> None:
    tokenizer = ScriptTokenizer(["a"])
    engine = script_engine([], tokenizer=tokenizer)
    message = ChatMessage(role="user", content="hi")
    prompts = [
        TextPrompt(text="hi"),
        TokenPrompt(tokens=(0,)),
        ChatPrompt(messages=(message,)),
        ChatPrompt(messages=(message,), add_generation_prompt=False),
    ]
    for number, prompt in enumerate(prompts):
        submit(engine, number, ask(prompt=prompt))
    assert tokenizer.kept_spaces == [True, True, False, True]


def test_a_seed_is_drawn_where_none_is_given() -> None:
    engine = script_engine(["a"])
    assert engine.prepare(ask()).sampling.seed != engine.prepare(ask()).sampling.seed
    assert engine.prepare(ask(sampling=Sampling(seed=7))).sampling.seed == 7


# --- cancel ---


def test_a_running_request_is_cancelled_by_the_next_step_alone() -> None:
    engine = script_engine(["x"] * 100)
    submit(engine, 1, ask())
    submit(engine, 2, ask())
    events = list[Event]()
    while not (text_of(events, 1) and text_of(events, 2)):
        events += engine.step()
    engine.cancel(1)
    engine.cancel(1)
    drawn = len(text_of(events, 1))
    assert engine.step() == [
        Finished(request_id=1, reason="cancelled", usage=Usage(prompt_tokens=1, completion_tokens=drawn))
    ]
    rest = run(engine)
    assert {event.request_id for event in rest} == {2}
    assert text_of(events + rest, 2) == "x" * 99


def test_a_queued_request_is_cancelled_at_once_and_was_never_admitted() -> None:
    engine = script_engine(["x"] * 100, width=1)
    submit(engine, 1, ask())
    submit(engine, 2, ask())
    engine.step()
    engine.cancel(2)
    assert engine.step() == [Finished(request_id=2, reason="cancelled", usage=Usage(prompt_tokens=1))]


def test_unknown_and_finished_requests_are_ignored() -> None:
    engine = script_engine(["a", "b"])
    submit(engine, 1, ask())
    run(engine)
    engine.cancel(1)
    engine.cancel(99)
    assert not engine.busy


# --- failures ---


class FaultyTokenizer(ScriptTokenizer):
    """Its detokeniser breaks at token 3."""

    def detokenizer(self, *, keep_leading_space: bool = False, **options: Any) -> ScriptDetokenizer:
        return ScriptDetokenizer(self.pieces[:3])


def test_a_row_that_cannot_be_decoded_fails_alone() -> None:
    engine = script_engine([], tokenizer=FaultyTokenizer(list("abcdef")))
    submit(engine, 1, ask(0))
    submit(engine, 2, ask(0, max_tokens=2))
    events = run(engine)
    ends = {event.request_id: event for event in events if isinstance(event, Failed | Finished)}
    failed = ends[1]
    assert isinstance(failed, Failed)
    assert "IndexError" in failed.error.message
    assert failed.usage.completion_tokens == 3
    assert isinstance(ends[2], Finished)
    assert text_of(events, 1) == text_of(events, 2) == "bc"


def test_a_broken_forward_pass_fails_every_request_and_then_the_engine() -> None:
    tokenizer = ScriptTokenizer(["x"] * 50)
    model = ScriptModel(tokenizer.vocab_size)
    info = EngineInfo(kv_bytes_per_token=1, context=100, width=1, kernels="portable", device="cpu")
    engine = GgufTextEngine(model, tokenizer, ScriptChat(PLAIN), frozenset(), info, KvCost(1))
    submit(engine, 1, ask())
    submit(engine, 2, ask())
    while not text_of(engine.step(), 1):
        pass
    model.broken = True
    events = engine.step()
    assert [(type(e), e.request_id) for e in events] == [(Failed, 1), (Failed, 2)]
    assert all(isinstance(e, Failed) and e.error.code == "worker_died" for e in events)
    assert "a kernel divided by zero" in str(events[0])
    assert engine.busy
    with pytest.raises(EngineFailed):
        engine.step()


# --- memory ---


def test_a_request_beyond_the_grant_asks_for_growth_and_goes_on_when_it_comes() -> None:
    engine = script_engine(["x"] * 600, grant=256)
    submit(engine, 1, ask(max_tokens=300))
    assert run(engine) == [] and engine.growth() == GrowRequest(request_id=1, bytes=256)
    engine.set_grant(512)
    assert engine.growth() is None
    end = run(engine)[-1]
    assert isinstance(end, Finished) and end.usage.completion_tokens == 300


def test_a_request_beyond_any_grant_fails_with_both_numbers() -> None:
    engine = script_engine(["x"] * 600, grant=256)
    submit(engine, 1, ask(max_tokens=300))
    engine.deny_growth(1, 300)
    assert engine.busy
    (failed,) = run(engine)
    assert isinstance(failed, Failed)
    assert failed.error.code == "context_length_exceeded"
    assert "301" in failed.error.message
    assert "256" in failed.error.message


def test_a_larger_grant_lets_a_waiting_request_in() -> None:
    engine = script_engine(["x"] * 200, grant=256, context=250)
    submit(engine, 1, ask(max_tokens=100))
    submit(engine, 2, ask(max_tokens=1))
    events = list[Event]()
    while not text_of(events, 1):
        events += engine.step()
    for _ in range(5):
        events += engine.step()
    assert not any(event.request_id == 2 for event in events)
    engine.set_grant(512)
    assert engine.step() == [Admitted(request_id=2, prompt_tokens=1)]


def test_an_open_ended_answer_ends_with_length_where_no_grant_is_larger() -> None:
    engine = script_engine(["x"] * 900, grant=256)
    submit(engine, 1, ask())
    events = run(engine)
    engine.deny_growth(1, 256)
    end = (events + run(engine))[-1]
    assert isinstance(end, Finished)
    assert end.reason == "length"
    assert 250 <= end.usage.completion_tokens <= 256


def test_an_open_ended_answer_goes_on_whole_under_a_larger_grant() -> None:
    engine = script_engine(["x"] * 900, grant=256)
    submit(engine, 1, ask())
    events = run(engine)
    growth = engine.growth()
    assert growth is not None and growth.request_id == 1
    engine.set_grant(256 + growth.bytes)
    events += run(engine)
    assert text_of(events) == "x" * 899
    assert len([event for event in events if isinstance(event, Admitted)]) == 1


def test_a_preempted_request_is_admitted_once_and_its_text_is_whole() -> None:
    engine = script_engine(["x"] * 300)
    submit(engine, 1, ask(0))
    submit(engine, 2, ask(0))
    events = list[Event]()
    while not text_of(events, 2):
        events += engine.step()
    engine.set_grant(512)  # either fits alone; together they would need 2 x 512
    events += run(engine)
    assert len([event for event in events if isinstance(event, Admitted)]) == 2
    assert text_of(events, 1) == text_of(events, 2) == "x" * 299
    ends = [event for event in events if isinstance(event, Finished)]
    assert {end.request_id: end.usage for end in ends} == {
        i: Usage(prompt_tokens=1, completion_tokens=300) for i in (1, 2)
    }


def real_engine() -> GgufTextEngine:
    tokenizer = ScriptTokenizer(["x"] * (VOCABULARY - 1))
    info = EngineInfo(kv_bytes_per_token=512, context=500, width=2, kernels="portable", device="cpu")
    return GgufTextEngine(stock_model("llama"), tokenizer, ScriptChat(PLAIN), frozenset({EOS}), info, KvCost(512))


def test_kv_is_measured_while_rows_run_and_gone_after() -> None:
    engine = real_engine()
    assert engine.memory().kv == 0
    submit(engine, 1, ask(max_tokens=4))
    engine.step()
    engine.step()
    report = engine.memory()
    assert (
        report.kv == 256 * 512
    )  # one step of the cache: 2 layers x 2 heads x 16 x (keys and values) x 4 bytes a token
    assert report.peak >= report.kv
    run(engine)
    assert engine.memory().kv == 0
    engine.shed(1)
    assert engine.memory().mlx_cache == 0


def test_unused_buffers_and_kv_together_stay_within_the_grant() -> None:
    engine = real_engine()
    engine.set_grant(grant := 2 * 256 * 512)
    hoard = mx.zeros((grant,), dtype=mx.uint8)
    mx.eval(hoard)
    submit(engine, 1, ask(max_tokens=20))
    submit(engine, 2, ask(max_tokens=20))
    engine.step()
    del hoard
    assert mx.get_cache_memory() >= grant
    while engine.busy:
        engine.step()
        report = engine.memory()
        assert report.kv + report.mlx_cache <= grant


def test_close_cancels_what_runs_and_frees_its_caches() -> None:
    engine = real_engine()
    submit(engine, 1, ask(max_tokens=40))
    submit(engine, 2, ask(max_tokens=40))
    submit(engine, 3, ask(max_tokens=40))
    for _ in range(6):
        engine.step()
    engine.close()
    assert engine.memory().kv == 0
    assert [(e.request_id, e.reason) for e in engine.step() if isinstance(e, Finished)] == [
        (1, "cancelled"),
        (2, "cancelled"),
        (3, "cancelled"),
    ]
    assert not engine.busy


# --- scheduling ---


def test_the_width_is_what_the_grant_holds_and_follows_it() -> None:
    engine = script_engine(["x"] * 50, context=1000, width=4, grant=2500)  # a row of 1000 tokens takes 1024 bytes
    assert engine.info.width == 2
    assert [(row.rows, row.tokens) for row in engine.capacity[:3]] == [(1, 1000), (2, 1000), (4, 512)]
    engine.set_grant(100_000)
    assert engine.info.width == engine.scheduling().width == 4
    assert script_engine(["x"], grant=None).capacity == ()


def test_a_better_class_of_requests_is_served_first_and_counted_apart() -> None:
    engine = script_engine(["x"] * 50, width=1)
    for request_id, priority in enumerate(("normal", "batch", "interactive"), start=1):
        submit(engine, request_id, ask(max_tokens=2, priority=priority))
    waiting = engine.scheduling()
    assert waiting.by_priority == PriorityCounts(interactive=1, normal=1, batch=1) and waiting.waiting == 3
    admitted = [event.request_id for event in run(engine) if isinstance(event, Admitted)]
    assert admitted == [3, 1, 2]
    told = engine.scheduling()
    assert (told.queue_wait.count, told.ttft.count, told.inter_token.count) == (3, 3, 3)
    assert (told.waiting, told.decoding, told.cohorts, told.frontier_tokens) == (0, 0, 0, 0)


def test_shedding_lets_a_prompt_go_that_is_kept_for_siblings() -> None:
    engine = real_engine()
    prompt = TokenPrompt(tokens=tuple(range(20)))
    submit(engine, 1, ask(max_tokens=90, prompt=prompt, siblings=7))
    submit(engine, 2, ask(max_tokens=90, prompt=prompt, siblings=7))
    submit(engine, 3, ask(max_tokens=90, prompt=prompt, siblings=7))  # for whom there is no place, so that it is kept
    while not any(isinstance(event, TextDelta) for event in engine.step()):
        pass
    held = engine.memory().kv
    engine.shed(1)
    assert 0 < engine.memory().kv < held and engine.scheduling().sheds == 1
