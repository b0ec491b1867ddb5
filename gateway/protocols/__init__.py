"""Wire formats, as pure functions: bytes to typed requests, events to bytes. No I/O, no clock but the one handed in.

A protocol is a parse and a render around what is the same for all of them::

    body ──json_body.decode──> mapping ──PROTOCOL.parse──> chat_ask.ChatAsk ──text_requests──> engines.wire.TextRequest
    engines.wire.Event ──piece.piece_of──> Piece ──PROTOCOL's StreamFormat.render──> bytes of a stream
                                           Piece ──completion.completions_of──> Completion ──PROTOCOL's BodyFormat──> one body
    error ──envelopes.render──> the error in the protocol's own shape

- **In**: ``ChatAsk`` holds messages, options, tools, grammar and reasoning, and joins them with the model's settings. ``parse``
  returns it beside what only the protocol knows: how the answer is sent.
- **Out**: a completion is pieces of text (with log-probabilities), of thinking, of tool calls (their beginning, then fragments of
  their arguments), and an end with reason, stop and usage. A stream renders them as they come (several fragments of one kind may
  have been joined for a slow client); a body gets whole completions, whose ``parts`` have the model's order.

What sends them is ``gateway.leased_response``, which a route gives the requests, a ``StreamFormat`` or None, and a ``BodyFormat``.

One file a wire format; ``options`` holds what they share: readers that name field, value and range in their 400s, and the
three tables (honoured, accepted hints, refused unless neutral) in which every option's name is looked up.
"""

__all__: list[str] = []
