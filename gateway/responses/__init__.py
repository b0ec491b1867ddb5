"""Stored responses, and responses that are made while nobody waits for them.

::

    route ── keep, read, conversation … ──> ResponseStore ── one thread ──> Database ══ SQLite file, for one gateway at a time
      │
      └── start, find ──> BackgroundRuns ── Run: the events of one response, for whoever watches

- ``database`` is what is in the file: its tables and its caps; ``database_file`` who may have it (``file_lock``), and what happens
  to a damaged one. Both block.
- ``store`` asks it from the event loop, and tells of what goes wrong.
- ``runs`` holds the responses that are made in the background, and those that were a moment ago.

What stands in a response is none of this package's business: bodies are JSON that ``protocols`` made.
"""

from gateway.responses.database import Database, Entry, Item, Page
from gateway.responses.runs import BackgroundRuns, Run
from gateway.responses.store import ResponseStore

__all__ = ["BackgroundRuns", "Database", "Entry", "Item", "Page", "ResponseStore", "Run"]
