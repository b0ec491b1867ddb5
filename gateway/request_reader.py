"""What of uvicorn's request reading a server of ours does otherwise.

*Offers to switch protocols are declined, and the request is read.* Java's HTTP client sends ``Upgrade: h2c`` with its first
request to every server. A server may ignore that (RFC 9110, 7.8), but the parser underneath takes all that follows such a head
for another protocol, so the request's body would be lost. The head is read again, without the offer.

*A head has a bound.* The parser keeps whatever it is sent until the empty line comes, before anyone has shown a key.
"""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["MAX_HEAD_BYTES", "RequestReader"]

MAX_HEAD_BYTES = 64 * 1024  # beyond what the first read of it brought
_HOP_NAMES = frozenset({b"connection", b"http2-settings", b"upgrade"})


class RequestReader(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with these two differences."""

    _in_head = False  # between a request's first byte and the empty line
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        continues_head = self._in_head
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            head = self._head_without_offer()
            self._restart_parser()
            self.data_received(head + data[offer.args[0] :])
            return
        except httptools.HttpParserError:
            self._refuse("Invalid HTTP request received.")
            return
        if continues_head and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse("The request's head is too large.")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if not self._is_offer():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._is_offer():
            super().on_message_complete()

    def _is_offer(self) -> bool:
        """Whether the parser will raise HttpParserUpgrade after this head. CONNECT raises it too, and has nothing else to say."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _head_without_offer(self) -> bytes:
        kept = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name not in _HOP_NAMES]
        tokens = [
            token.strip().lower()
            for name, value in self.headers
            if name == b"connection"
            for token in value.split(b",")
        ]
        kept += [b"connection: close\r\n"] * (b"close" in tokens)
        version = self.parser.get_http_version().encode()
        return b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, b"".join(kept))

    def _restart_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it

    def _refuse(self, message: str) -> None:
        """Answers what is no request, and closes. An answer under way is cut: its reader would take the two for one."""
        self.logger.warning(message)
        if self.cycle is None or self.cycle.response_complete:
            self.send_400_response(message)
        else:
            self.transport.abort()
