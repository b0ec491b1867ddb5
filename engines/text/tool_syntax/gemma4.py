"""Gemma's notation between control tokens: FunctionGemma and Gemma 4."""

from __future__ import annotations

from engines.text.tool_syntax.gemma_form import GemmaForm

__all__ = ["FunctionGemma", "Gemma4"]


class FunctionGemma(GemmaForm):
    """Strings are between ``<escape>`` marks."""

    name = "function_gemma"
    models = "FunctionGemma"
    example = "<start_function_call>call:weather{city:<escape>Oslo<escape>}<end_function_call>"
    opens, closes, quote = "<start_function_call>", "<end_function_call>", "<escape>"
    marks = (opens, closes, quote)


class Gemma4(GemmaForm):
    """Strings are between ``<|"|>`` marks."""

    name = "gemma4"
    models = "Gemma 4"
    example = '<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>'
    opens, closes, quote = "<|tool_call>", "<tool_call|>", '<|"|>'
    marks = (opens, closes, quote)
