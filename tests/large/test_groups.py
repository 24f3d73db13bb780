"""A group of a million messages: it stays in order, and splits beside it move nothing of it."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)
from typing import Final

from tests.client.queues.test_order_over_ranges import Consumer, enqueue
from tests.client.stores import Store

MESSAGES: Final = 1_000_000
AT_ONCE: Final = 10_000
LOOKED_AT: Final = 2_000


def test_a_group_of_a_million_messages_stays_in_order_while_its_range_splits() -> None:
    store = Store()
    store.driver.run(store.core.create_queue("q", order="group"))
    for first in range(0, MESSAGES, AT_ONCE):
        enqueue(store, *(("middle", first + number) for number in range(AT_ONCE)))
    consumer = Consumer(store, Random(1), 0.1)
    for key in (None, b"z", b"b", b"middle\x00"):
        if key is not None:
            store.advance(1.0)
            store.driver.run(store.core.split(key))
        for _ in range(LOOKED_AT // 4):
            consumer.take(10)
    queue = store.core.queue("q")
    assert store.driver.run(queue.stats()).ready == MESSAGES - consumer.done["middle"]
    assert consumer.done["middle"] > LOOKED_AT / 2
    store.db.close()
