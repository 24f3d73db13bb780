"""Questions to a node that nobody waits for any more."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import pytest

from postroom.client.remote.native import ask
from postroom.errors import Error
from postroom.protocol.streams import HELLO, Accepted, Opening, WireError, reply_bytes

STEPS = 40
"""The turns of the event loop by which the question is answered."""


def cancelled_at_every_step(answer: bytes) -> list[dict[str, Any]]:
    """Return the complaints of the event loop if a node says ``answer`` and hangs up."""
    complaints: list[dict[str, Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for steps in range(STEPS):
            question = asyncio.create_task(ask(address, None, Opening(HELLO), 100))
            for _ in range(steps):
                await asyncio.sleep(0)
            question.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError, Error, WireError):
                await question
            for _ in range(STEPS):
                await asyncio.sleep(0)
        server.close()
        gc.collect()

    asyncio.run(run())
    return complaints


@pytest.mark.parametrize("answer", [b"", reply_bytes(Accepted(b""))])
def test_a_question_that_is_cancelled_leaves_no_complaints(answer: bytes) -> None:
    assert not cancelled_at_every_step(answer)
