"""Wire formats, as pure functions: bytes to typed requests, events to bytes. No I/O, no clock but the one handed in.

A request's way through this package::

    body ──json_body.decode──> mapping ──openai_chat.parse──> ChatRequest ──text_request──> engines.wire.TextRequest
    events ──openai_chat.ChatStream.render──> SSE bytes
    completions ──openai_chat.render_body──> one JSON body
    error ──envelopes.render──> the error in the protocol's own shape

One file a wire format; ``options`` holds what they share: readers that name field, value and range in their 400s, and the
three tables (honoured, accepted hints, refused unless neutral) in which every option's name is looked up.
"""

__all__: list[str] = []
