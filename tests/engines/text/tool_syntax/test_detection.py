"""The syntax is found from the marks in the chat template, the most particular first."""

from __future__ import annotations

import pytest

from engines.text.tool_syntax import GENERIC, SYNTAXES, syntax_named, syntax_of

# Excerpts of our own, with the marks that each family's templates have.
TEMPLATES = {
    "harmony": "{% if tools %}# Tools{% endif %}<|channel|>commentary to=functions.{{ name }} <|constrain|>json<|message|>",
    "minimax_m2": "{% set open = '<minimax:tool_call>' %}{% for tool in tools %}<invoke name=\"{{ name }}\"><parameter name=",
    "minimax_m1": "{% for tool in tools %}Call tools in <tool_calls></tool_calls> XML tags{% endfor %}",
    "gemma4": "{% for tool in tools %}<|tool>{% endfor %}{{ '<|tool_call>call:' + name }}<tool_call|>",
    "function_gemma": "{% for tool in tools %}<start_function_declaration>{% endfor %}<start_function_call>call:{{ name }}",
    "glm45": "{% if tools %}<tool_call>{name}\n<arg_key>{key}</arg_key>{% endif %}[gMASK]<|observation|>",
    "lfm2": "{% if tools %}List of tools: <|tool_list_start|>{% endif %}",
    "qwen3_coder": "{% if tools %}<tool_call>\n<function=example>\n<parameter=a>\n1\n</parameter>\n</function>{% endif %}",
    "seed_oss": "{% if tools %}{% set begin = '<seed:tool_call>' %}<function=a>\n<parameter=b>c</parameter>{% endif %}",
    "deepseek_v32": "{% if tools %}{% set token = '｜DSML｜' %}{{ '<' + token + 'function_calls>' }}{% endif %}",
    "deepseek_v4": "{% if tools %}{% set token = '｜DSML｜' %}{{ '<' + token + 'tool_calls>' }}{% endif %}",
    "nemotron": "{% if tools %}<TOOLCALL>[{{ calls }}]</TOOLCALL>{% endif %}",
    "kimi_k2": "{% if tools %}{% endif %}<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>",
    "deepseek_v31": "{% if tools %}{% endif %}{{ '<｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments }}",
    "deepseek_v3": "{% if tools %}{% endif %}{{ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + name + '\n```json\n' }}",
    "command": '{% for tool in tools %}{% endfor %}<|START_ACTION|>[{"tool_call_id": "0", "tool_name": ',
    "mistral": "{% for tool in tools %}[AVAILABLE_TOOLS]{% endfor %}{{ '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}",
    "mistral_array": "{% for tool in tools %}[AVAILABLE_TOOLS]{% endfor %}{{ '[TOOL_CALLS][' }}",
    "functionary_v32": "{% for tool in tools %}{% endfor %}{{ '>>>all\n' + content }}",
    "functionary_v31": "{% for tool in tools %}<|python_tag|>{{ '<function=' + name + '>' + arguments }}{% endfor %}",
    "phi4": "{% for tool in tools %}{{ '<|tool|>' + tool + '<|/tool|>' }}{% endfor %}<|tool_call|>",
    "granite": "{% if tools %}<|start_of_role|>tools{% endif %}List calls after <|tool_call|> as JSON",
    "hermes": "{% if tools %}<tools></tools> in <tool_call></tool_call> XML tags{% endif %}",
    "llama3": '{% if tools %}{"name": function name, "parameters": dictionary of arguments}{% endif %}<|python_tag|>',
    "llama4": "{% if tools %}[func_name1(params_name1=params_value1), func_name2(params)]{% endif %}<|header_start|>",
    "command_r": '{% if tools %}Write \'Action:\' followed by a json-formatted list with "tool_name" and "parameters"{% endif %}',
    "gemma3": "{% if tools %}Wrap calls in ```tool_code```{% endif %}",
    "glm4": "[gMASK]<sop>{% if tools %}{% endif %}<|observation|>",
    "generic": "{% if tools %}The tools: {{ tools }}{% endif %}",
}


def test_templates_cover_the_table() -> None:
    assert sorted(TEMPLATES) == sorted(each.name for each in SYNTAXES)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_syntax_is_found_by_its_marks(name: str) -> None:
    assert syntax_of(TEMPLATES[name]).name == name


@pytest.mark.parametrize("template", [None, "", "{{ messages }}", "{{ message['tools'] }}<tool_call>"])
def test_templates_that_show_no_tools_get_the_generic_form(template: str | None) -> None:
    assert syntax_of(template) is GENERIC


def test_control_tokens_are_asked_where_the_template_has_no_marks() -> None:
    tokens = ("<|im_end|>", "<|tool_call_start|>", "<|tool_call_end|>")
    assert syntax_of("{{ tools }}", tokens).name == "lfm2"
    assert syntax_of("{{ tools }}<tool_call>", tokens).name == "hermes"
    assert syntax_of("{{ messages }}", tokens) is GENERIC


def test_marks_of_a_syntax_that_is_not_known_are_not_taken_for_another() -> None:
    template = "{% if tools %}{% set begin = other ~ '<tool_call>' %}<invoke name=\"{% endif %}"
    assert syntax_of(template) is GENERIC


def test_names_are_unique_and_found() -> None:
    names = [each.name for each in SYNTAXES]
    assert len(set(names)) == len(names)
    assert all(syntax_named(each.name) is each for each in SYNTAXES)
    assert syntax_named("unknown") is None
