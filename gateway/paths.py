"""Where Innkeeper keeps its state and its cache.

========== ======================================= ====================================
kind       Linux                                   macOS
========== ======================================= ====================================
state      ``$XDG_STATE_HOME/innkeeper``           ``~/Library/Application Support/innkeeper``
cache      ``$XDG_CACHE_HOME/innkeeper``           ``~/Library/Caches/innkeeper``
========== ======================================= ====================================

Without the variable, ``~/.local/state`` and ``~/.cache``, as the XDG base directory specification says; a relative value in
one of them is ignored, as it also says. The functions name a directory; who writes there makes it.
"""

import os
import sys
from pathlib import Path

__all__ = ["cache_directory", "state_directory"]


def state_directory() -> Path:
    """Learned values and stored responses; worth keeping."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "innkeeper"
    return _xdg("XDG_STATE_HOME", ".local/state") / "innkeeper"


def cache_directory() -> Path:
    """What can be made again: assembled model files, inspection results, compiled kernels (the engines')."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "innkeeper"
    return _xdg("XDG_CACHE_HOME", ".cache") / "innkeeper"


def _xdg(variable: str, fallback: str) -> Path:
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else Path.home() / fallback
