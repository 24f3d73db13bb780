"""A transaction is tried again whose timestamp has moved, because of another range."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest

from postroom.client.reading import Reads
from postroom.errors import TransactionConflict
from postroom.ranges.requests import Get, Value
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


def second(store: DatabaseOverStreams, act: Callable[[Any], Awaitable[Any]]) -> Any:
    """Return the coroutine of a transaction whose first try is lost, and whose second one acts."""
    tries = 0

    async def tried(tx: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            await lose(store, tx)
        assert tries == 2
        return await act(tx)

    return store.db.run(tried)


def test_a_later_try_sees_what_was_committed_with_the_messages_that_it_reaps(
    store: DatabaseOverStreams,
) -> None:
    async def receive(tx: Any) -> Any:
        await store.db.run(send)
        assert len(await tx.reap_queue(BOX)) == 1
        return await tx.get(NOTE)

    assert store.run(second(store, receive)) == b"sent"


def test_a_later_try_waits_for_a_message_for_any_time(store: DatabaseOverStreams) -> None:
    async def receive(tx: Any) -> Any:
        assert len(await tx.reap_queue(BOX, wait=float("inf"))) == 1
        return await tx.get(NOTE)

    running = store.start(second(store, receive))
    began = store.monotonic()
    store.until(lambda: store.go_on(running) is None or store.monotonic() > began + 100.0, 110.0)
    store.run(store.db.run(send))
    store.until(lambda: store.go_on(running) is None or running.done, 5.0)
    assert running.result() == b"sent"


@pytest.mark.parametrize("kind", ["get", "get_many", "scan", "peek", "get_for_update"])
def test_the_first_read_of_a_later_try_has_the_timestamp_of_all_ranges(
    store: DatabaseOverStreams, kind: str
) -> None:
    async def read(tx: Any) -> Any:
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

    assert store.run(second(store, read)) == b"last"


# --- reads that are concurrent


class Asked:
    """A request that is answered by hand; ``None`` asks for the present."""

    def __init__(self, request: Get | None) -> None:
        self.request = request
        self.answer: Any = None

    def __await__(self) -> Generator[Any, None, Any]:
        while self.answer is None:
            yield self
        return self.answer


class Sender:
    """A sender whose requests are answered by hand."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def send(self, request: Get) -> Asked:
        self.asked.append(Asked(request))
        return self.asked[-1]

    def now(self) -> Asked:
        self.asked.append(Asked(None))
        return self.asked[-1]

    def range_of(self, key: bytes) -> int:
        return key[0]


class Several:
    """Concurrent reads of a later try.

    Args:
        keys: what is read.
    """

    def __init__(self, *keys: bytes) -> None:
        self.sender = Sender()
        sender: Any = self.sender
        self.reads = Reads(sender)
        self.reads.move_at_first()
        self.results: dict[bytes, Value] = {}
        self._running = {key: self._read(key) for key in keys}
        self.go_on()

    async def _read(self, key: bytes) -> None:
        self.results[key] = await self.reads.get(key)

    def go_on(self) -> None:
        """Let all go on as far as they can."""
        running: dict[bytes, Coroutine[Any, Any, None]] = {}
        for key, each in self._running.items():
            try:
                each.send(None)
            except StopIteration:
                continue
            running[key] = each
        self._running = running

    def answer(self, asked: Asked, present: int = 0) -> None:
        """Answer a request, or tell the present."""
        asked.answer = present or Value(None, asked.request.timestamp)  # type: ignore[union-attr]
        self.go_on()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_concurrent_first_reads_move_the_timestamp_once(order: tuple[int, ...]) -> None:
    """Each time that it moved, the others would have to begin anew."""
    several = Several(b"a", b"b", b"c")
    presents = list(several.sender.asked)
    for number, each in enumerate(order, 1):
        several.answer(presents[each], 100 * number)
    for asked in several.sender.asked[3:]:
        several.answer(asked)
    assert {each.timestamp for each in several.results.values()} == {100}
    assert len(several.results) == 3
    assert not several.reads.has_moved


def test_a_read_is_repeated_as_often_as_the_timestamp_moves_meanwhile() -> None:
    """A commit checks that nothing is newer than the timestamp: not than an earlier one."""
    several = Several(b"a")
    several.answer(several.sender.asked[0], 100)
    for moved, number in ((200, 1), (300, 2)):
        several.reads.timestamp = moved
        several.answer(several.sender.asked[number])
        assert not several.results
    several.answer(several.sender.asked[3])
    assert several.results[b"a"].timestamp == 300
