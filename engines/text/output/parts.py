"""What an answer's text is made of.

Every part has its ``source``: the piece of the model's text that it stands for. The sources of all parts, one after the other,
are the whole text, so nothing is ever lost, and whoever counts characters knows which tokens a part came from.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CallArguments", "CallEnd", "CallStart", "Content", "Mark", "Part", "Thought"]


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer proper."""

    source: str

    @property
    def text(self) -> str:
        """The same as ``source``: an answer's text is never altered."""
        return self.source


@dataclass(frozen=True, slots=True)
class Thought:
    """Text of the model's thinking, without the marks around it."""

    source: str

    @property
    def text(self) -> str:
        """The same as ``source``."""
        return self.source


@dataclass(frozen=True, slots=True)
class Mark:
    """What is for no reader: marks of thinking and of channels, and the whitespace that touches any mark."""

    source: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of the function ``name``; ``index`` counts an answer's calls from 0."""

    index: int
    id: str
    name: str
    source: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A fragment of the arguments. All of a complete call's fragments in a row are one JSON object."""

    index: int
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is over. If not ``complete``, the text broke off in it or stopped being one: it must not be carried out."""

    index: int
    complete: bool
    source: str


Part = Content | Thought | Mark | CallStart | CallArguments | CallEnd
