"""The order of groups holds while their ranges split and their first messages fail."""

from __future__ import annotations

from collections import defaultdict
from random import Random  # noqa: TID251 (seeded)
from typing import Final

import pytest

from postroom.client.queues.messages import QueueMessage
from tests.client.stores import Store
from tests.server.splitting import split

GROUPS: Final = 1000
LONGEST: Final = "\x00" * 256
"""A group with the longest name that there is, before all others."""


def name(number: int) -> str:
    return f"group/{number:04d}"


def enqueue(store: Store, *messages: tuple[str, int]) -> None:
    """Enqueue messages in one transaction, each with its group and its number there."""

    async def send() -> None:
        async with store.core.begin() as tx:
            for group, number in messages:
                tx.enqueue("q", b"%d" % number, group=group)

    store.driver.run(send())


class Consumer:
    """A consumer that rejects some messages, and looks that groups are in order.

    Attributes:
        done: how many messages of each group are done.
        failed: how many attempts it has rejected.
    """

    def __init__(self, store: Store, random: Random, failing: float) -> None:
        self.done: defaultdict[str, int] = defaultdict(int)
        self.failed = 0
        self._queue = store.core.queue("q")
        self._run = store.driver.run
        self._random = random
        self._failing = failing

    def take(self, most: int) -> int:
        """Take messages, and settle them; return how many there were."""
        found: list[QueueMessage] = self._run(self._queue.claim(most))
        groups = [each.group for each in found]
        assert len(groups) == len({*groups}), "a group has one message out at a time"
        for each in found:
            assert int(each.payload) == self.done[each.group], (each.group, each.payload)
        fails = [self._random.random() < self._failing for _ in found]
        done = [each for each, failed in zip(found, fails, strict=True) if not failed]
        rejected = [each for each, failed in zip(found, fails, strict=True) if failed]
        for each in done:
            self.done[each.group] += 1
        if done:
            self._run(self._queue.acknowledge(done))
        if rejected:
            self._run(self._queue.reject(rejected, delay=0))
        self.failed += len(rejected)
        return len(found)


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_groups_stay_in_order_while_ranges_split_and_heads_fail(seed: int) -> None:
    store, random = Store(), Random(seed)
    store.driver.run(store.core.create_queue("q", order="group", max_attempts=1000))
    for number in range(3):
        enqueue(store, *[(name(group), number) for group in range(GROUPS)])
    consumer = Consumer(store, random, 0.2)
    cuts = random.sample(range(1, GROUPS), 12)
    for turn in range(3 * GROUPS):
        if turn % 4 == 3 and cuts:
            store.advance(1.0)  # an earlier split has left something to delete
            split(store, name(cuts.pop()).encode())
        if not consumer.take(random.choice([1, 20, 100])) and not cuts:
            store.advance(0.1)
            if sum(consumer.done.values()) == 3 * GROUPS:
                break
    assert [*consumer.done.values()] == [3] * GROUPS
    assert consumer.failed > 100
    assert len(store.node.replicas.hosted) == 13
    store.db.close()


@pytest.mark.parametrize("key", [b"\x00" * 255, b"\x00" * 256, b"\x00" * 257, b"\x01"])
def test_a_group_with_a_name_of_null_bytes_stays_in_order_over_a_split_beside_it(
    key: bytes,
) -> None:
    store = Store()
    store.driver.run(store.core.create_queue("q", order="group"))
    enqueue(store, *[(group, number) for number in range(6) for group in (LONGEST, "\x01")])
    consumer = Consumer(store, Random(1), 0.3)
    consumer.take(2)
    split(store, key)
    enqueue(store, (LONGEST, 6), ("\x01", 6))
    for _ in range(40):
        consumer.take(2)
        store.advance(0.1)
    assert consumer.done == {LONGEST: 7, "\x01": 7}
    store.db.close()
