"""A server process over a fake residency: ``python -m tests.gateway.helpers_fake_server '{"port": 0, …}'``.

Its one model says a word every 10 ms and never ends. As the real one does, ``shutdown`` waits for leases.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator

from engines.wire import Event, TextRequest
from gateway.server import StartError, serve
from tests.gateway.helpers_app import make_catalog, make_settings
from tests.gateway.helpers_residency import FakeResidency, delta


async def words(_request: TextRequest) -> AsyncIterator[Event]:
    while True:
        yield delta("word ")
        await asyncio.sleep(0.01)


def main() -> int:
    residency = FakeResidency()
    residency.script = words

    async def leases_end() -> None:
        for lease in residency.leases:
            await lease.released.wait()

    residency.on_shutdown = leases_end
    try:
        return serve(make_settings(**json.loads(sys.argv[1])), make_catalog(), residency=residency)
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
