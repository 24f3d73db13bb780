"""Waits are cancelled: before the request is evaluated, while it is written, when it is done."""

from __future__ import annotations

import asyncio
from pathlib import Path

import postroom.aio

KEYS = 5_000
"""The number of keys of a write that is large enough to be made beside the event loop."""


def test_a_commit_that_is_cancelled_while_it_is_written_ends_as_cancelled(tmp_path: Path) -> None:
    async def main() -> set[type[BaseException] | None]:
        ends: set[type[BaseException] | None] = set()
        async with await postroom.aio.open(tmp_path) as db:
            for steps in range(8):
                tx = db.begin()
                for number in range(KEYS):
                    tx.put(b"%d" % number, b"")
                committing = asyncio.ensure_future(tx.commit())
                for _ in range(steps):
                    await asyncio.sleep(0)
                committing.cancel()
                await asyncio.wait({committing})
                cancelled = committing.cancelled()
                ends.add(asyncio.CancelledError if cancelled else type(committing.exception()))
        return ends

    assert asyncio.run(main()) <= {asyncio.CancelledError, type(None)}
