"""Routes: one file a protocol family, each with a ``ROUTES`` list; ``app.py`` joins them.

A handler is the request's path in a dozen lines: parse, classify, lease, respond. One Route a path, so that a 405 carries every
allowed method. A route whose engine is not built yet stands in ``unbuilt.py`` and answers 501.
"""

__all__: list[str] = []
