"""Steps of random histories that concern queues, and the memory of the queues to compare.

There are two queues: ``q`` has the usual settings, and ``p`` has some that are not. Claims wait and
are answered, messages are enqueued in all forms, and those that were claimed are settled.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from hypothesis import strategies as st

from postroom.kv.clock import from_milliseconds, from_seconds
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection
from postroom.messaging.queues.definition_requests import CreateQueue, QueueSettings, UpdateQueue
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.range_queues import RangeQueues
from postroom.messaging.queues.requests import (
    Acknowledge,
    Attempt,
    EnqueueInQueue,
    Extend,
    RejectMessages,
)
from tests.messaging.one_range import EPOCH_MILLISECONDS, Asked

EPOCH: Final = from_milliseconds(EPOCH_MILLISECONDS)
Step: TypeAlias = tuple[Any, ...]

QUEUES: Final = (
    CreateQueue("q", QueueSettings(ack_wait=3.0, batch_size=20)),
    CreateQueue("p", QueueSettings(archive=True, order="group", on_duplicate="replace",
                                   max_concurrency=3, cache_size=4)),
)  # fmt: skip
"""The queues of each history."""

names = st.sampled_from(("q", "q", "q", "p"))
kinds = st.sampled_from(("", "", "kind"))
priorities = st.sampled_from((0, 0, 1, -128))
payloads = st.binary(max_size=3) | st.just(b"x" * 600)
headers = st.none() | st.just({"a": 1}) | st.just({}) | st.just({"deep": {}})
made_up = st.builds(
    lambda queue, id_, kind, *rest: EnqueueInQueue(queue, id_, kind, id_, *rest, is_unique=True),
    names, st.integers(0, 200).map(b"made up by a client %03d".__mod__), kinds, payloads,
    headers, priorities,
)  # fmt: skip
ids = st.sampled_from((b"a", b"m", b"c/1", b"made up by a client 150"))
with_id = st.builds(EnqueueInQueue, names, ids, kinds, ids, payloads, headers, priorities)
enqueues = made_up | made_up | with_id
later = st.integers(1, 2).map(lambda seconds: EPOCH + from_seconds(seconds))
unusual_enqueues = (
    st.builds(EnqueueInQueue, names, ids, kinds, ids, payloads, headers, priorities, later)
    | st.builds(
        EnqueueInQueue, names, ids, kinds, ids, payloads, headers, group=st.sampled_from("gh")
    )
    | st.builds(EnqueueInQueue, st.just("none"), ids, kinds, ids, payloads)
    | st.builds(UpdateQueue, names, st.just({"purge_after": 5.0}), st.booleans())
)

claims = st.tuples(
    st.just("claim"), names, st.integers(1, 12), st.booleans(), st.integers(1, 2),
    st.sampled_from((ClaimSelection(),) * 3 + (ClaimSelection(kinds=["kind"]),)),
)  # fmt: skip
settles = st.tuples(
    st.just("settle"), st.sampled_from(("acknowledge",) * 6 + ("some",) * 4
                                       + ("twice", "by id", "reject", "extend", "again")),
)  # fmt: skip
advances = st.tuples(st.just("advance"), st.sampled_from((512, 512, 1)))
idles = st.just(("idle",))
odd = st.lists(unusual_enqueues | with_id, min_size=1, max_size=2)
twice = made_up.map(lambda message: [message, message])
sends = (odd | odd | odd | twice).map(lambda sent: ("commit", sent, [], 0, 5))
queue_steps = claims | claims | settles | settles | advances | advances | idles | sends


class Claims:
    """The claims of a history, and what they were given."""

    def __init__(self) -> None:
        self._asked: list[tuple[str, Asked]] = []
        self._held: list[tuple[str, list[Attempt]]] = []
        self._settled: list[tuple[str, list[Attempt]]] = []
        self._number = 0

    def request(
        self, queue: str, number: int, wait: bool, consumer: int, selection: ClaimSelection
    ) -> ClaimQueue:
        """Return a claim of a consumer."""
        self._number += 1
        return ClaimQueue(
            queue, b"a client" + consumer.to_bytes(8, "big"), number, selection, wait,
            number=self._number,
        )  # fmt: skip

    def asked(self, queue: str, asked: Asked) -> None:
        """Note a claim."""
        self._asked.append((queue, asked))

    def settle(self, how: str) -> list[Any]:
        """Return the writes that settle what was claimed first."""
        self._take_answers()
        if how == "again" and self._settled:
            return [Acknowledge(*self._settled[0])]
        if not self._held:
            return []
        queue, attempts = self._held.pop(0)
        self._settled.append((queue, attempts))
        if how == "extend":
            self._held.append((queue, attempts))
            return [Extend(queue, attempts, 4.0)]
        if how == "reject":
            return [RejectMessages(queue, attempts, delay=0.5)]
        if how == "some":
            if attempts[1:]:
                self._held.insert(0, (queue, attempts[1:]))
            attempts = attempts[:1]
        elif how == "twice":
            attempts = attempts + attempts[:1]
        elif how == "by id":
            attempts = [Attempt(b"", each.kind, each.id, by_id=True) for each in attempts]
        return [Acknowledge(queue, attempts)]

    def _take_answers(self) -> None:
        """Take the messages of the claims that were answered."""
        for queue, asked in self._asked:
            if asked.answers and asked.answers[0][0] is not None:
                found = asked.answers[0][0].messages
                if found:
                    attempts = [
                        Attempt(*each.locator, each.epoch, fired_at=each.fired_at) for each in found
                    ]
                    self._held.append((queue, attempts))
        self._asked = [each for each in self._asked if not each[1].answers]


def let_idle(queues: RangeQueues) -> None:
    """Let all queues be forgotten that are not asked for from now on."""
    for manager in queues._by_name.values():
        manager.was_asked_for = False


def seen(queues: RangeQueues) -> list[Any]:
    """Return the memory of the queues of a range, to be compared."""
    steps = queues.steps
    agenda = steps._agenda
    lines = (agenda._by_timestamp, agenda._by_wall, agenda._by_time, agenda._polls)
    plans = [(each.first(), each.of("q"), each.of("p")) for each in lines]
    managers = [_seen(manager) for manager in queues._by_name.values()]
    looks = [manager.name for manager in steps._to_look]
    fired = [manager.name for manager in steps._fired]
    return [managers, looks, fired, steps.is_wanted, list(agenda._due), plans]


def _seen(manager: Manager) -> list[Any]:
    ready, leases = manager.ready, manager.leases
    held = [
        (locator, lease.number, lease.holding.key, lease.holding.left, lease.holding.marks)
        for locator, lease in leases._leases.items()
    ]
    return [
        manager.name, manager.counted, list(ready._alive.items()), ready.additions,
        ready.is_complete, held, leases._held_by, leases._clients, len(leases),
        len(manager.consumers), manager.to_give_back, manager.next_by_timestamp(),
        manager.next_by_wall(), manager.next_by_time(), list(manager.lateness), manager.ordered,
        manager.was_asked_for, manager.speculation.is_under_way, manager.speculation.has_fired,
        manager.speculation.taken,
    ]  # fmt: skip


__all__ = ["QUEUES", "Claims", "enqueues", "let_idle", "queue_steps", "seen", "unusual_enqueues"]
