"""From the text that a model writes to what it says: content, thinking, calls.

::

    text ──OutputParser.feed──> Reader ──> answer.MarkedAnswer, or channels.ChannelledAnswer for gpt-oss
                                             marks of thinking: engines.text.reasoning
                                             calls: engines.text.tool_syntax ──> CallStream
                                         ──> Content, Thought, Mark, CallStart, CallArguments, CallEnd

Pure text: no tokens, no MLX. What a caller does::

    parser = output_parser(reasoning, syntax, tools, starts_in_reasoning=opened_by(prompt, reasoning))
    for text in detokenised_tokens:              # with the control tokens among reasoning.marks and syntax.marks spelled out
        for part in parser.feed(text): ...
    for part in parser.finish(): ...
    reason = "length" if cut else "tool_calls" if parser.calls_complete else "stop"

Rules:

1. The ``source`` of all parts, joined, is the text. Content and thoughts are told unaltered.
2. However the text is cut into pieces, the parts say the same.
3. Whitespace that touches a mark belongs to the mark, so that ``<think>\\n`` or a line break before a call is no content.
4. What begins like a call and is none is content, marks and all. Where a syntax has marks, a function that the request does not
   have is a call like any other, as the client can tell the model so; without marks, such text is content.
5. A call that was told (``CallStart``) and then breaks off or stops being valid ends with ``CallEnd(complete=False)``; in the
   latter case its rest is content.
6. The arguments of a complete call are one JSON object.
7. A character is read at most twice.
"""

from engines.text.output.parser import OutputParser, output_parser
from engines.text.output.parts import CallArguments, CallEnd, CallStart, Content, Mark, Part, Thought

__all__ = [
    "CallArguments",
    "CallEnd",
    "CallStart",
    "Content",
    "Mark",
    "OutputParser",
    "Part",
    "Thought",
    "output_parser",
]
