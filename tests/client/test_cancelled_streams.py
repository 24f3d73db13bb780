"""Streams and scans that are cancelled, or closed, half-way: nothing is lost, nothing stays."""

from __future__ import annotations

import asyncio
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

import postroom.aio
from postroom.client.codec import resolve
from postroom.client.images import Restore
from postroom.client.staging import StagingCalls
from postroom.kv.clock import SystemClock
from postroom.kv.memory import MemoryEngine
from postroom.messaging.ingest.requests import RestoreEntries
from postroom.raft.interface import NoPeers
from postroom.ranges.requests import Put
from postroom.server.assembly import NodeOptions
from postroom.server.asyncio_driver import AsyncioDriver
from postroom.server.node import Node
from tests.client.queues.fakes import FakeSender
from tests.client.test_asyncio import on_a_loop


def test_a_chunk_whose_answer_was_waited_for_in_vain_is_sent_again() -> None:
    """It counted as answered: what had become of it nobody asked any more."""
    sender, write = FakeSender(), Put(b"k", b"v")
    stream = StagingCalls(sender).stream()
    sender.answers.append(asyncio.CancelledError())
    sender.run(stream.send(write))
    with pytest.raises(asyncio.CancelledError):
        sender.run(stream.flush())
    sender.run(stream.flush())
    assert sender.asked == [[write], [write]]
    sender.run(stream.flush())
    assert len(sender.asked) == 2


def test_entries_whose_answer_was_waited_for_in_vain_are_sent_again() -> None:
    sender, entries = FakeSender(), RestoreEntries(b"run", [b"name"], [b"stored"])
    restore = Restore(sender, b"run")
    sender.answers.extend([asyncio.CancelledError(), None])
    sender.run(restore.send(entries.names, entries.stored))
    with pytest.raises(asyncio.CancelledError):
        sender.run(restore.flush())
    sender.run(restore.flush())
    assert sender.asked == [entries, entries]


@on_a_loop
async def test_a_scan_that_is_closed_protects_nothing_any_more() -> None:
    """It did, until the loop came to close what the scan was made of."""
    node = Node(MemoryEngine(), SystemClock(), Random(1), NoPeers(), NodeOptions())
    driver = AsyncioDriver(node, Random(2))
    driver.start()

    async def no_status() -> Any:
        raise NotImplementedError

    async with postroom.aio.Database(driver, resolve(None), no_status, driver.close) as db:
        await db.put(b"a", b"1")
        pairs = db.scan()
        assert await anext(pairs) == (b"a", b"1")
        assert node.sizes()["protections"] == 1
        await pairs.aclose()
        assert node.sizes()["protections"] == 0
