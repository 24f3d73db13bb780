"""Random histories of limited queues in ranges that split: slots are conserved after each step."""

from __future__ import annotations

import random  # noqa: TID251 - an instance is made, to be passed in
from contextlib import suppress
from typing import Any

import pytest

from postroom.errors import Error
from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.messaging.queues.definition_requests import UpdateQueue
from tests.client.stores import Store
from tests.messaging.one_range import Asked
from tests.server.splitting import hosted, split
from tests.server.test_queues_of_ranges import Q, commit, create, enqueue
from tests.server.test_slots import acknowledge, request
from tests.sim.slot_rules import check_slots
from tests.sim.store_rules import contents_of

STEPS = 120
LIMITS = (None, 1, 2, 3, 7, 20)
RATES = (None, None, 0.7, 3.0, 25.0)


class History:
    """A random history of one queue."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = Store()
        self.limit = self.random.choice(LIMITS)
        create(self.store, max_concurrency=self.limit, ack_wait=self.random.choice([3.0, 3600.0]))
        self.held: list[StoredQueueMessage] = []
        self.waiting: list[Asked] = []
        self.cuts: set[bytes] = set()
        self.number = 0

    def key(self) -> bytes:
        return b"%02d" % self.random.randrange(100)

    def enqueue(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            self.number += 1
            enqueue(self.store, self.key(), b"/%d" % self.number)

    def claim(self) -> None:
        wanted = self.random.randrange(1, 4)
        options: dict[str, Any] = {"wait": self.random.random() < 0.7}
        call = Asked(request(self.store, self.key(), wanted, **options))
        self.store.node.replicas.submit(call)
        self.waiting.append(call)

    def acknowledge(self) -> None:
        self.random.shuffle(self.held)
        some = [self.held.pop() for _ in range(min(len(self.held), self.random.randrange(1, 5)))]
        for each in some:
            with suppress(Error):  # its lease may be over
                acknowledge(self.store, [each])

    def split(self) -> None:
        key = self.key()
        if key not in self.cuts and len(self.cuts) < 8:
            split(self.store, key)
            self.cuts.add(key)

    def update(self) -> None:
        limit, rate = self.random.choice(LIMITS), self.random.choice(RATES)
        commit(self.store, UpdateQueue(Q, {"max_concurrency": limit, "max_rate": rate}))

    def change_lease(self) -> None:
        range_id = self.random.choice(list(self.store.node.replicas.hosted))
        hosted(self.store, range_id).replica.begin_anew()

    def pass_time(self) -> None:
        self.store.advance(self.random.choice([0.01, 0.1, 0.5, 2.0]))

    def step(self) -> None:
        """Take a step, and check the slots."""
        acts = (
            self.enqueue, self.enqueue, self.claim, self.claim, self.claim, self.acknowledge,
            self.acknowledge, self.split, self.update, self.change_lease, self.pass_time,
            self.pass_time,
        )  # fmt: skip
        self.random.choice(acts)()
        self.look()

    def look(self) -> None:
        """Take the answers to claims, and check the slots."""
        for call in [each for each in self.waiting if each.answers]:
            self.waiting.remove(call)
            result, error = call.answers[0]
            if error is None:
                self.held += result.messages
        check_slots(contents_of(self.store.node.engine))

    def end(self) -> None:
        """Check that all messages are fired in the end, and all slots go back."""
        commit(self.store, UpdateQueue(Q, {"max_concurrency": 3, "max_rate": None}))
        for _ in range(200):
            if not self.left():
                break
            while self.held:
                self.acknowledge()
            for key in (b"", *self.cuts):
                call = Asked(request(self.store, key, 3))
                self.store.node.replicas.submit(call)
                self.waiting.append(call)
            self.store.advance(0.5)
            self.look()
        assert not self.left()
        self.store.db.close()

    def left(self) -> int:
        queues = [each.messaging.queues for each in self.store.node.replicas.hosted.values()]
        return sum(each._directory.known(Q).counted.ready for each in queues)


@pytest.mark.parametrize("seed", range(6))
def test_slots_are_conserved_whatever_happens(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.end()
