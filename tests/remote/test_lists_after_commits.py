"""Lists, counts and drain tell of a commit over several ranges as soon as it is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from postroom.messaging.requests import ListScheduled, ReadCounters
from postroom.ranges.transactions.requests import Resolve
from postroom.server.range_calls import RangeCalls
from tests.remote.streams import DatabaseOverStreams
from tests.server.hosting import ThreeNodes

MESSAGES = 10


_send = RangeCalls._send


def send_all_but_ends(
    self: RangeCalls, to: int, range_id: int, request: Any, answered: Any, **said: Any
) -> None:
    if type(request) is not Resolve:
        _send(self, to, range_id, request, answered, **said)


@pytest.fixture
def store() -> Iterator[DatabaseOverStreams]:
    """Return a client of three nodes, of which node 1 leads range 1 and node 2 leads range 2."""
    nodes = ThreeNodes()
    nodes.lead(1, 1)
    nodes.lead(2, 2)
    yield DatabaseOverStreams(nodes)
    nodes.close()


@pytest.mark.parametrize("drains", [False, True])
def test_lists_show_at_once_what_a_commit_has_done_to_messages_of_another_range(
    store: DatabaseOverStreams, monkeypatch: pytest.MonkeyPatch, drains: bool
) -> None:
    """The coordinator does not say that the transaction has committed."""

    async def send() -> None:
        async with store.db.begin() as tx:
            for number in range(2 * MESSAGES):
                tx.enqueue_message(b"z", b"%d" % number)

    async def refuse(number: int) -> tuple[int, int, Any]:
        async with store.db.begin() as tx:
            tx.put(b"a", b"%d" % number)
            one, two = await tx.reap_queue(b"z", 2)
            tx.bury([one])
            tx.postpone([two], delay=60.0)
        if drains:
            await store.db.drain()
        told = [store.send(each) for each in (ReadCounters(), ListScheduled(b"", None, 100))]
        letters = await store.db.dead_letters()
        counters, scheduled = [await each for each in told]
        return len(letters), len(scheduled.entries), counters

    store.run(send())
    store.run(store.db.drain())
    monkeypatch.setattr(RangeCalls, "_send", send_all_but_ends)
    for number in range(1, MESSAGES + 1):
        letters, scheduled, counters = store.run(refuse(number))
        assert (letters, scheduled, counters.dead) == (number, number, number)
