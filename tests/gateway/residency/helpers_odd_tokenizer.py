"""A tokenizer process that misbehaves: ``python -m …helpers_odd_tokenizer MODE --fd N --parent PID``.

========  ===================================================
mode      what it does after Hello
========  ===================================================
mute      reads, and never answers
babble    answers with what is no message
bodiless  says that it has answered in chunks, without any
exit      ends with status 3 (before Hello)
========  ===================================================
"""

from __future__ import annotations

import os
import socket
import sys

from engines.wire import Answered, Hello, encode_frame


def main() -> None:
    mode = sys.argv[sys.argv.index("--parent") + 2]
    if mode == "exit":
        sys.stderr.write("no luck\n")
        sys.exit(3)
    connection = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
    connection.sendall(encode_frame(Hello(pid=os.getpid())))
    while connection.recv(65536):
        if mode == "babble":
            connection.sendall(b"\x00\x00\x00\x01\xc1")
        elif mode == "bodiless":
            connection.sendall(encode_frame(Answered(request_id=1)))


if __name__ == "__main__":
    main()
