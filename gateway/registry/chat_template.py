"""``chat_template`` in the registry: the template itself, or the path of a file that holds it.

Text with ``{{``, ``{%``, ``{#`` or a line break is a template; no file is called so, and no template goes without. Whether the
template compiles is the worker's to say: the gateway does not import Jinja.
"""

from __future__ import annotations

import re
from pathlib import Path

from gateway.registry.values import ValueProblem, format_bytes

__all__ = ["read_chat_template"]

_INLINE = re.compile(r"\{\{|\{%|\{#|\n")
_MAX_BYTES = 1024**2  # the largest that models come with take some tens of KiB


def read_chat_template(value: str, directory: Path) -> tuple[str, str | None]:
    """The template, and the path it was read from (None: it stood there). Paths are relative to ``directory``.

    ValueProblem says what is wrong with the file.
    """
    if _INLINE.search(value):
        return value, None
    try:
        path = directory / Path(value).expanduser()
        if not path.is_file():
            raise ValueProblem(f"{path}: no such file; a template itself has {{{{ or {{% in it")
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise ValueProblem(
                f"{path}: {format_bytes(size)} is no template; at most {format_bytes(_MAX_BYTES)} are read"
            )
        text = path.read_text(encoding="utf-8")
    except ValueProblem:
        raise
    except UnicodeDecodeError as error:
        raise ValueProblem(f"{path}: not UTF-8 at byte {error.start}") from error
    except (OSError, RuntimeError, ValueError) as error:  # no permission; a user who is not known; a null byte
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ValueProblem(f"{value}: cannot be read: {reason}") from error
    if not text.strip():
        raise ValueProblem(f"{path}: is empty")
    return text, str(path)
