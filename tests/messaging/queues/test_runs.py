"""Messages that are fired together go to the claims that would get them one by one."""

from __future__ import annotations

from random import Random  # noqa: TID251 - made with a seed
from typing import Any

import pytest

from postroom.messaging.queues import firing
from postroom.messaging.queues.claim_requests import ClaimSelection, StoredQueueMessage
from tests.messaging.queues.harness import Queues

SELECTIONS = (ClaimSelection(),) * 5 + (ClaimSelection(kinds=("kind",)),)


class History:
    """A random history of a queue."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = Random(seed)
        self.queues = Queues()
        self.queues.create(
            ack_wait=5.0, batch_size=chance.choice((3, 10)), cache_size=chance.choice((4, 50)),
            max_concurrency=chance.choice((None, None, 7)), order=chance.choice(("none", "group")),
        )  # fmt: skip
        self.claims: list[Any] = []
        self.held: list[list[StoredQueueMessage]] = []
        self.told: list[Any] = []

    def enqueue(self) -> None:
        chance, group = self.chance, self.chance.choice(("", "", "", "g"))
        self.queues.commit(*(
            self.queues.message(
                bytes(chance.choice((1, 2, 3, 600 if not each else 4))),
                group=group, kind=chance.choice(("", "", "", "kind")),
                priority=chance.choice((0, 0, 0, 0, 1)),
            )
            for each in range(chance.randint(1, 12))
        ))  # fmt: skip

    def claim(self) -> None:
        most = self.chance.choice((2, 9))
        for _ in range(self.chance.randint(1, 4)):
            self.claims.append(self.queues.start(self.queues.claim_request(
                most if self.chance.random() < 0.9 else 5,
                wait=True, consumer=self.queues.consumer(self.chance.randint(1, 3)),
                selection=self.chance.choice(SELECTIONS),
                bytes_max=self.chance.choice((1 << 20, 1 << 20, 10)),
            )))  # fmt: skip

    def take_answers(self) -> None:
        for running in [each for each in self.claims if each.done]:
            self.claims.remove(running)
            self.held.append(running.result().messages)
            self.told.append([(each.id, each.epoch, each.payload) for each in self.held[-1]])

    def settle(self) -> None:
        if self.held:
            messages = self.held.pop(self.chance.randrange(len(self.held)))
            how = self.queues.acknowledge if self.chance.random() < 0.7 else self.queues.reject
            how(*messages)

    def play(self) -> list[Any]:
        for _ in range(40):
            self.chance.choice((self.enqueue, self.claim, self.claim, self.settle))()
            self.queues.pass_time(0.01)
            self.take_answers()
        return [*self.told, self.queues.counts(), list(self.queues.stored().values())]


@pytest.mark.parametrize("seed", range(15))
def test_runs_are_fired_as_messages_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    together = History(seed).play()
    monkeypatch.setattr(firing, "RUN_MIN", 1 << 30)
    assert History(seed).play() == together
