"""Leases of messages last as long as they were given for, in each range of an embedded store."""

from __future__ import annotations

from tests.client.stores import Store
from tests.server.splitting import hosted, split
from tests.server.test_queues_of_ranges import claim, create, enqueue

KEYS = (b"a", b"z")


def test_each_range_keeps_the_deadlines_of_its_messages_when_all_leases_end() -> None:
    store = Store(rests_alone=True)
    right = split(store, b"m")
    create(store, ack_wait=60.0)
    for key in KEYS:
        enqueue(store, key)
        assert claim(store, key) == [key]
    queues = [hosted(store, each).messaging.queues for each in (1, right.range_id)]
    deadlines = [dict(each.deadlines()) for each in queues]
    for each in queues:
        each.end()
    assert [each.handed for each in queues] == deadlines
    assert all(deadlines)
    store.db.close()
