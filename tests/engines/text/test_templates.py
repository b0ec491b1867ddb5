"""Chat templates: what they are given, where they end, and what they may not do."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest

from engines.errors import InvalidField, RequestError
from engines.text.templates import ChatTemplate, NoChatTemplate, TemplateRefused, check_variables, unused_characters

CHATML = (
    "{% for message in messages %}\n"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def user(content: Any = "hi", **extra: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **extra}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def render(source: str, messages: Sequence[Mapping[str, Any]] | None = None, **variables: Any) -> str:
    return ChatTemplate(source).render([user()] if messages is None else messages, **variables)


def test_render_trims_blocks_and_ends_with_the_generation_prompt() -> None:
    assert render(CHATML) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert ChatTemplate(CHATML).render([user()], False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_render_gives_specials_variables_and_extra_keys() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{{ messages[0].name }}{{ tools is none }}{{ enable_thinking }}{{ unk_token }}",
        {"bos_token": "<s>"},
    )
    assert template.render([user(name="Ada")], enable_thinking=False) == "<s>AdaTrueFalse"


def test_render_chooses_the_template_for_tools() -> None:
    template = ChatTemplate("plain", tool_use="with {{ tools | length }}")
    assert template.render([user()]) == "plain"
    assert template.render([user()], tools=[]) == "plain"
    assert template.render([user()], tools=[{}]) == "with 1"
    assert ChatTemplate(None, tool_use="only").render([user()]) == "only"


def test_render_without_a_template_names_the_completions_route() -> None:
    template = ChatTemplate(None)
    assert not template.exists
    with pytest.raises(NoChatTemplate, match="/v1/completions") as caught:
        template.render([user()])
    assert (caught.value.code, caught.value.param) == ("invalid_request_error", "messages")


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt"])
def test_render_refuses_variables_that_are_the_request_s_own(name: str) -> None:
    with pytest.raises(InvalidField, match=name) as caught:
        check_variables({name: []})
    assert caught.value.param == "chat_template_kwargs"


# --- continued messages ---


@pytest.mark.parametrize("content", ["Once upon", "ends in space ", "", "<|im_end|>", "hi", "\ufdd0 and \ufdd1"])
def test_an_answer_is_continued_right_after_its_text(content: str) -> None:
    text = ChatTemplate(CHATML).render([user(), assistant(content)], False)
    assert text == f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{content}"


LLAMA_LIKE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|h|>' + m['role'] + '<|/h|>\n\n' + m['content'] | trim + '<|eot|>' }}"
    "{% endfor %}{% if add_generation_prompt %}<|h|>assistant<|/h|>\n\n{% endif %}"
)
GEMMA_LIKE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = m.role %}"
    "{% endif %}<turn>{{ role }}\n{% if m.content is string %}{{ m.content | trim }}{% else %}{% for part in m.content %}"
    "{{ part.text }}{% endfor %}{% endif %}</turn>\n{% endfor %}<turn>model\n"
)
MISTRAL_LIKE = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% elif m.content %} "
    "{{ m.content }}{{ eos_token }}{% else %}{{ raise_exception('empty') }}{% endif %}{% endfor %}"
)
THINKING = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% set text = m.content.split('</think>')[-1] %}"
    "{% if loop.last %}<think>\n\n</think>\n\n{% endif %}{{ text.lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<end>"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize(
    ("source", "before"),
    [
        (LLAMA_LIKE, "<s><|h|>user<|/h|>\n\nhi<|eot|><|h|>assistant<|/h|>\n\n"),
        (GEMMA_LIKE, "<turn>user\nhi</turn>\n<turn>model\n"),
        (MISTRAL_LIKE, "[INST] hi [/INST] "),
        (THINKING, "<user>hi<end><assistant><think>\n\n</think>\n\n"),
    ],
)
@pytest.mark.parametrize("content", ["Once upon", "ends in space ", ""])
def test_an_answer_is_continued_whatever_the_template_puts_around_it(source: str, before: str, content: str) -> None:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    assert template.render([user(), assistant(content)], False) == before + content


@pytest.mark.parametrize("source", ["{{ messages[-1].content[:3] }}", "{{ messages[-1].content | length }}"])
def test_an_answer_that_the_template_cuts_cannot_be_continued(source: str) -> None:
    with pytest.raises(TemplateRefused, match="cannot be continued") as caught:
        ChatTemplate(source).render([user(), assistant("Once upon")], False)
    assert caught.value.param == "messages"


def test_an_answer_is_not_continued_with_a_generation_prompt() -> None:
    text = ChatTemplate(CHATML).render([user(), assistant("yes")])
    assert text.endswith("yes<|im_end|>\n<|im_start|>assistant\n")


def test_an_answer_is_closed_where_the_conversation_is_asked_for_as_it_stands() -> None:
    text = ChatTemplate(CHATML).render([user(), assistant("yes")], False, False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"


def test_only_an_assistant_s_text_is_continued() -> None:
    assert ChatTemplate(CHATML).render([user("yes")], False).endswith("yes<|im_end|>\n")
    tool_call: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [{}]}
    assert ChatTemplate("{{ messages | length }} messages").render([user(), tool_call], False) == "2 messages"


def test_an_answer_repeated_by_the_template_is_continued_after_its_last_place() -> None:
    source = "{{ messages[-1].content }}|{{ messages[-1].content }}|end"
    assert ChatTemplate(source).render([user(), assistant("yes")], False) == "yes|yes"


def test_an_answer_that_the_template_leaves_out_cannot_be_continued() -> None:
    with pytest.raises(TemplateRefused, match="leaves the last message out"):
        ChatTemplate("{{ messages[0].content }}").render([user(), assistant("yes")], False)


# --- helpers ---


def test_tojson_is_plain_json() -> None:
    value = {"b": "<é & 'ü'>", "a": [1, None, True]}
    assert render("{{ v | tojson }}", v=value) == """{"b": "<é & 'ü'>", "a": [1, null, true]}"""
    assert render("{{ v | tojson(indent=2) }}", v={"a": 1}) == '{\n  "a": 1\n}'
    assert render("{{ v | tojson(separators=(',', ':'), sort_keys=true) }}", v={"b": 1, "a": 2}) == '{"a":2,"b":1}'
    assert render("{{ v | tojson(ensure_ascii=true) }}", v="é") == '"\\u00e9"'


def test_strftime_now_reads_the_clock_it_is_given() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2024, 7, 26))
    assert template.render([user()]) == "26 Jul 2024"


def test_loop_controls_namespaces_and_macros_work() -> None:
    source = (
        "{%- macro show(n) -%}<{{ n }}>{%- endmacro -%}{% set ns = namespace(total=0) %}"
        "{% for n in range(10) %}{% if n == 1 %}{% continue %}{% endif %}{% if n == 4 %}{% break %}{% endif %}"
        "{% set ns.total = ns.total + n %}{{ show(n) }}{% if loop.last %}!{% endif %}{% endfor %}={{ ns.total }}"
    )
    assert render(source) == "<0><2><3>=5"


def test_loops_know_their_length_and_end() -> None:
    source = "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ '.' if loop.last else ',' }}{% endfor %}"
    assert render(source, [user(), user()]) == "1/2,2/2."
    filtered = "{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ loop.length }}{% endfor %}"
    assert render(filtered, [user(), assistant("x"), user()]) == "22"
    assert render("{% for k, v in messages[0].items() %}{{ k }}{% else %}none{% endfor %}") == "rolecontent"
    assert render("{% for x in nothing %}{% else %}none{% endfor %}") == "none"


def test_the_generation_tag_is_its_body() -> None:
    assert render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "ahib"


def test_bounded_filters_and_methods_work_as_jinja_s() -> None:
    assert render("{{ ['a', 'b'] | join(', ') }}{{ '-'.join(['c', 'd']) }}") == "a, bc-d"
    assert render("{{ [{'n': 1}, {'n': 2}] | join('+', attribute='n') }}") == "1+2"
    assert render("{{ 'aXbX' | replace('X', '') }}{{ 'aXbX'.replace('X', '.', 1) }}") == "aba.bX"
    in_a_loop = (
        "{% for x in ['a-b'] %}{% set y = x.replace('-', '+') %}{{ '.'.join(y) }}{{ '{}'.format(y) }}{% endfor %}"
    )
    assert render(in_a_loop) == "a.+.ba+b"
    assert render("{{ 'a\n\nb' | indent }}|{{ 'a\nb' | indent(2, first=true) }}") == "a\n\n    b|  a\n  b"
    assert render("{{ '%s-%03d' | format('a', 7) }}{{ '%s!' % 'b' }}{{ '{}{:.2f}'.format('c', 1) }}") == "a-007b!c1.00"
    assert render("{{ 'a' ~ 1 ~ none }}{{ 'ab' * 2 }}{{ 2 ** 5 }}{{ [1] + [2] }}") == "a1Noneabab32[1, 2]"


# --- errors ---


def test_an_exception_of_the_template_is_its_own_words_and_line() -> None:
    source = (
        "a\n{% if messages[0].role != 'system' %}\n{{ raise_exception('Begin with a system message') }}\n{% endif %}"
    )
    with pytest.raises(TemplateRefused, match=r"Begin with a system message.*line 3") as caught:
        render(source)
    assert (caught.value.line, caught.value.param, caught.value.code) == (3, "messages", "invalid_request_error")
    assert isinstance(caught.value, RequestError)


def test_a_message_that_an_expression_cannot_use_names_the_line() -> None:
    with pytest.raises(TemplateRefused, match="TypeError") as caught:
        render("\n{{ 'a' + messages[0].content }}", [user(None)])
    assert caught.value.line == 2


def test_a_syntax_error_names_the_line_and_the_template() -> None:
    with pytest.raises(TemplateRefused, match="not valid Jinja") as caught:
        render("\n\n{% if %}")
    assert (caught.value.line, caught.value.param) == (3, "chat_template")


def test_an_undefined_value_is_an_error_where_it_is_used() -> None:
    with pytest.raises(TemplateRefused, match="undefined"):
        render("{{ nothing.at.all }}")


# --- the sandbox ---


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}",
        "{{ ''.format.__self__.__class__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '' | attr('__class__') }}",
        "{{ self.__init__.__globals__ }}",
        "{% set x = cycler.__init__.__globals__ %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_the_sandbox_keeps_templates_from_python(source: str) -> None:
    messages = [user()]
    try:
        shown = ChatTemplate(source).render(messages)
    except TemplateRefused:
        shown = ""
    assert (shown, messages) == ("", [user()])  # what is out of reach is undefined, and shows as nothing


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) | map('string') %}{% endfor %}{% endfor %}",
        "{{ range(10 ** 9) | list }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
        "{{ 'a' * 10 ** 12 }}",
        "{{ 10 ** 12 * [0] }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set n = namespace(v=3) %}{% for i in range(99) %}{% set n.v = n.v * n.v %}{% endfor %}{{ n.v }}",
        "{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = n.s | replace('a', 'aa') %}{% endfor %}",
        "{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = n.s.replace('a', 'aa') %}{% endfor %}",
        "{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = n.s.join(n.s) %}{% endfor %}",
        "{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = n.s | join(n.s) %}{% endfor %}",
        "{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99) %}{{ s }}{% endfor %}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a' | center(999999999) }}",
        "{{ 'a' | attr('zfill')(999999999) }}",
        "{{ 'a'.encode().ljust(999999999) }}",
        "{{ 'a' | attr('encode')() }}",
        "{{ (1).to_bytes(999999999, 'big') }}",
        "{{ ('a' * 1000000).translate({97: 'a' * 1000}) }}",
        "{{ ('%(a)s' * 1000) % {'a': 'a' * 1000000} }}",
        "{{ ('%s' * 20) % (('a' * 1000000,) * 20) }}",
        "{{ ('%(a)s' * 1000) | format(a='a' * 1000000) }}",
        "{{ ('{0}' * 1000).format('a' * 1000000) }}",
        "{{ ('{0[a]}' * 1000).format({'a': 'a' * 1000000}) }}",
    ],
)
def test_the_sandbox_ends_templates_that_run_or_grow_away(source: str) -> None:
    began = time.process_time()
    with pytest.raises(TemplateRefused):
        render(source)
    assert time.process_time() - began < 20  # without the bound: for ever, or out of memory


def test_each_rendering_has_its_own_steps() -> None:
    template = ChatTemplate("{% for a in range(90000) %}{% endfor %}ok")
    assert [template.render([user()]) for _ in range(15)] == ["ok"] * 15


# --- characters nobody uses ---


def test_unused_characters_are_in_no_string_given() -> None:
    first = unused_characters(2)
    assert first == "\ufdd0\ufdd1"
    messages = [{"role": "user", "content": [{"text": "\ufdd0"}]}, {"\ufdd1": ("\ufdd3",)}]
    assert unused_characters(2, messages, "é") == "\ufdd2\ufdd4"
    every = "".join(map(chr, range(0xFDD0, 0xFDF0)))
    assert unused_characters(1, every) == "\U000f0000"
