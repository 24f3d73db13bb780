"""Stores for tests of applications, which are split into ranges."""

from __future__ import annotations

import postroom.testing


def test_time_passes_in_the_queues_of_all_ranges() -> None:
    with postroom.testing.Store() as store:
        queue = store.db.create_queue("q", ack_wait=60)
        store.db.split(b"m")
        with store.db.begin() as tx:
            for key in (b"a", b"z"):
                tx.enqueue("q", key, key=key, deliver_at=3600)
        store.advance(3600)
        assert sorted(each.payload for each in queue.claim(10)) == [b"a", b"z"]
        store.advance(60)  # both leases end
        store.advance(3600)  # and what comes back is ready
        assert [each.epoch for each in queue.claim(10)] == [1, 1]


def test_ticks_that_lie_in_another_range_are_there_when_time_has_passed() -> None:
    with postroom.testing.Store() as store:
        queue = store.db.create_queue("q")
        store.db.split(b"m")
        queue.schedule("hourly", cron="0 * * * *", payload=b"tick", group="z")
        store.advance(3600)
        assert [each.payload for each in queue.claim(10)] == [b"tick"]
