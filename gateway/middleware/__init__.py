"""What every request passes before it reaches its route: pure ASGI, one file each, outermost first.

=================  ===============================================================================================
``request_id``     names the request, in its answer and in every log line
``access_log``     one line a request, when it has ended; counts it
``cors``           headers for allowed browser origins, on whatever comes out below; answers preflights
``error_boundary`` turns an error from below into its protocol's envelope; logs unexpected ones, once, with the trace
``host_guard``     on a loopback bind: refuses names that a web page pointed at this machine (DNS rebinding)
``origin_guard``   refuses what a page of another site asks to be changed
``auth``           the key, and what it may do; default deny
``concurrency``    a key's bound on requests under way
``body_limit``     bytes a body may have, announced or not
=================  ===============================================================================================

The order is the list in ``app.py``. A guard refuses by raising a GatewayError.

One that has nothing to do after its call, or after a message, hands on what is to be awaited and does not await it itself: a
request is resumed, and sends, through fewer frames.
"""

__all__: list[str] = []
