"""A history of a queue whose range is divided meanwhile, and splits at its end."""

from __future__ import annotations

from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Final

from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.messaging.queues.queries import ListQueueMessages
from postroom.ranges.split.requests import CancelSplit, NewRangeId, PrepareSplit
from tests.messaging.queues.division import check_copies, divisible, held_back
from tests.messaging.queues.harness import Q
from tests.queue_model.histories import History, small_steps
from tests.queue_model.systems import Embedded
from tests.server.splitting import upkeep

KEYS: Final = (b"3", b"6", b"h", b"made up 20")
COPIED_AT_ONCE: Final = 3


class Dividing(Embedded):
    """A store whose range is divided now and then.

    Attributes:
        most: the most records that were copied.
    """

    def __init__(self, chance: Random) -> None:
        super().__init__(chance)
        self.most = 0
        self._key: bytes | None = None

    def check(self) -> None:
        super().check()
        self.most = max(self.most, check_copies(self._queues.store.node.engine))
        if self._key is None and self._chance.random() < 0.2:
            self.prepare(self._chance.choice(KEYS))
        elif self._key is not None and self._chance.random() < 0.03:
            self.send(CancelSplit(self._key))
            self._key = None

    def prepare(self, key: bytes) -> None:
        """Prepare a split, unless the range refuses."""
        (range_id,) = self.send(NewRangeId())
        (error,) = self.send(PrepareSplit(key, range_id))
        self._key = key if error is None else None

    def split(self) -> bool:
        """Carry out the split that is prepared, if any; return whether there was one."""
        for _ in range(100):
            if self._key is None or len(self._queues.store.node.replicas.hosted) > 1:
                break
            self.advance(0.1)
        return len(self._queues.store.node.replicas.hosted) > 1

    def everything(self) -> list[StoredQueueMessage]:
        """Return all messages of all ranges that are not gone."""
        found: list[StoredQueueMessage] = []
        store = self._queues.store
        for hosted in store.node.replicas.hosted.values():
            for state in ("", "dead", "done"):
                found += upkeep(store, hosted, ListQueueMessages(Q, state, b"")).messages
        return found


def play(seed: int, steps: int = 60) -> tuple[int, bool]:
    """Play one history; return the most records that were copied, and whether its range split.

    Raises:
        Wrong: the store did something else than a queue does.
        AssertionError: the copies were wrong.
    """
    chance = Random(f"divided queue {seed}")
    with small_steps(chance), divisible(COPIED_AT_ONCE):
        system = Dividing(chance)
        with held_back():
            history = History(system, chance)
            history.run(steps)
        is_split = system.split()
        history.reference.compare(system.everything(), system.now())
        return system.most, is_split
