"""How models write calls: one file a syntax, one entry in the table.

``SYNTAXES`` is in the order in which templates are asked, the most particular first: a template may hold the marks of several.
To add one, write a subclass of :class:`ToolSyntax`, put it in the table, and add its golden calls to the tests, which go over
the table. ``docs/tools.md`` lists them.

What a caller does::

    syntax = syntax_named(wanted) or syntax_of(template, control_tokens)
    if syntax is GENERIC:      # engines.text.generic_tools
        messages = generic_messages(messages, instructions(tools))
    else:
        variables[tools_variable(template) or "tools"] = tools in the OpenAI form
    parser = output_parser(reasoning, syntax, tools, …)      # engines.text.output; control tokens among syntax.marks spelled out
    lark = syntax.grammar(tools, parallel=…, special={mark: id}, required=…)

A grammar begins where thinking ends. That of ``harmony`` has the thinking in it: there it holds from the first token.
"""

from collections.abc import Collection

from engines.text.generic_tools import knows_tools
from engines.text.tool_syntax.command_r import Command, CommandR
from engines.text.tool_syntax.deepseek import DeepSeekV3, DeepSeekV31
from engines.text.tool_syntax.deepseek_dsml import DeepSeekV4, DeepSeekV32
from engines.text.tool_syntax.functionary import FunctionaryV31, FunctionaryV32
from engines.text.tool_syntax.gemma3 import Gemma3
from engines.text.tool_syntax.gemma4 import FunctionGemma, Gemma4
from engines.text.tool_syntax.generic import Generic
from engines.text.tool_syntax.glm4 import Glm4
from engines.text.tool_syntax.glm45 import Glm45
from engines.text.tool_syntax.granite import Granite
from engines.text.tool_syntax.harmony import Harmony
from engines.text.tool_syntax.hermes import Hermes
from engines.text.tool_syntax.kimi_k2 import KimiK2
from engines.text.tool_syntax.llama3 import Llama3
from engines.text.tool_syntax.llama4 import Lfm2, Llama4
from engines.text.tool_syntax.minimax_m1 import MiniMaxM1
from engines.text.tool_syntax.minimax_m2 import MiniMaxM2
from engines.text.tool_syntax.mistral import Mistral, MistralArray
from engines.text.tool_syntax.nemotron import Nemotron
from engines.text.tool_syntax.phi4 import Phi4
from engines.text.tool_syntax.qwen3_coder import Qwen3Coder, SeedOss
from engines.text.tool_syntax.syntax import CallRules, ToolSyntax, Triggers

__all__ = ["GENERIC", "SYNTAXES", "CallRules", "ToolSyntax", "Triggers", "syntax_named", "syntax_of"]

GENERIC = Generic()

SYNTAXES: tuple[ToolSyntax, ...] = (
    Harmony(),
    MiniMaxM2(),
    MiniMaxM1(),
    Gemma4(),
    FunctionGemma(),
    Glm45(),
    Lfm2(),
    SeedOss(),
    Qwen3Coder(),
    KimiK2(),
    DeepSeekV32(),
    DeepSeekV4(),
    DeepSeekV31(),
    DeepSeekV3(),
    Command(),
    Mistral(),
    MistralArray(),
    FunctionaryV32(),
    FunctionaryV31(),
    Nemotron(),
    Phi4(),
    Granite(),
    Hermes(),
    Llama3(),
    Llama4(),
    CommandR(),
    Gemma3(),
    Glm4(),
    GENERIC,
)


def syntax_of(template: str | None, control_tokens: Collection[str] = ()) -> ToolSyntax:
    """The syntax whose marks stand in a chat template; ``GENERIC`` if none does, or if it shows no tools to the model.

    Where a template that shows tools has no marks, the vocabulary's control tokens are asked: a few models are told of their
    marks by nothing else. With ``GENERIC`` the tools are shown by :func:`engines.text.generic_tools.generic_messages` and
    not by the template.
    """
    if template is None or not knows_tools(template):
        return GENERIC
    named = " ".join(control_tokens)
    return next((syntax for text in (template, named) for syntax in SYNTAXES if syntax.matches(text)), GENERIC)


def syntax_named(name: str) -> ToolSyntax | None:
    """The syntax of that name, or None."""
    return next((syntax for syntax in SYNTAXES if syntax.name == name), None)
