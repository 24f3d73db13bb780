"""A transaction is tried again whose timestamp has moved, because of another range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from postroom.errors import TransactionConflict
from tests.remote.streams import DatabaseOverStreams
from tests.server.hosting import ThreeNodes

BOX, NOTE = b"a/box", b"z/note"


@pytest.fixture
def store() -> Iterator[DatabaseOverStreams]:
    """Return a store of two ranges, which two nodes lead."""
    nodes = ThreeNodes(b"m")
    for range_id in nodes.range_ids:
        nodes.lead(range_id, range_id)
    store = DatabaseOverStreams(nodes)
    store.run(store.db.put(BOX, b""))
    store.run(store.db.put(NOTE, b"old"))
    yield store
    nodes.close()


async def send(tx: Any) -> None:
    """Note that a message is sent, in the other range."""
    tx.put(NOTE, b"sent")
    tx.enqueue_message(BOX, b"")


async def lose(store: DatabaseOverStreams, tx: Any) -> None:
    """Let the timestamp of a transaction move, and end it.

    Raises:
        TransactionConflict: always.
    """
    await tx.get(BOX)
    await store.db.put(NOTE, b"new")
    await tx.get(NOTE)
    assert tx._reads.has_moved
    raise TransactionConflict("lost")


def test_a_later_try_sees_what_was_committed_with_the_messages_that_it_reaps(
    store: DatabaseOverStreams,
) -> None:
    tries = 0

    async def receive(tx: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            await lose(store, tx)
        await store.db.run(send)
        assert len(await tx.reap_queue(BOX)) == 1
        return await tx.get(NOTE)

    assert store.run(store.db.run(receive)) == b"sent"
    assert tries == 2


def test_a_later_try_waits_for_a_message_for_any_time(store: DatabaseOverStreams) -> None:
    tries = 0

    async def receive(tx: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            await lose(store, tx)
        assert len(await tx.reap_queue(BOX, wait=float("inf"))) == 1
        return await tx.get(NOTE)

    running = store.start(store.db.run(receive))
    began = store.monotonic()
    store.until(lambda: store.go_on(running) is None or store.monotonic() > began + 100.0, 110.0)
    store.run(store.db.run(send))
    store.until(lambda: store.go_on(running) is None or running.done, 5.0)
    assert running.result() == b"sent"
    assert tries == 2


@pytest.mark.parametrize("kind", ["get", "get_many", "scan", "peek", "get_for_update"])
def test_the_first_read_of_a_later_try_has_the_timestamp_of_all_ranges(
    store: DatabaseOverStreams, kind: str
) -> None:
    tries = 0

    async def read(tx: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            await lose(store, tx)
        await store.db.put(NOTE, b"last")
        if kind == "scan":
            found = dict([pair async for pair in tx.scan(b"", None)])
            return found[NOTE]
        await {
            "get": lambda: tx.get(BOX),
            "get_many": lambda: tx.get_many([BOX]),
            "peek": lambda: tx.peek(BOX),
            "get_for_update": lambda: tx.get_for_update(BOX),
        }[kind]()
        before = tx.read_timestamp
        value = await tx.get(NOTE)
        assert tx.read_timestamp == before, "it need not move"
        return value

    assert store.run(store.db.run(read)) == b"last"
    assert tries == 2
