"""Each message comes to its home once, and its id tells where, whatever is lost, doubled or late.

A story is made from a seed. Transactions over three ranges enqueue and acknowledge messages, while
requests are lost and doubled, and leases move. In the end everything arrives. Then each message
that was inserted is counted once, and pointers and messages agree.
"""

from __future__ import annotations

import random  # noqa: TID251 - makes an instance, seeded
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pytest

from postroom.errors import (
    Error,
    LeaseLost,
    TransactionConflict,
    TransactionExpired,
    Unavailable,
)
from postroom.kv import keys
from postroom.messaging.queues.enqueueing import REPLACED
from postroom.messaging.queues.requests import (
    Acknowledge,
    Attempt,
    CancelMessages,
    EnqueueInQueue,
    RejectMessages,
)
from postroom.ranges.requests import Put
from tests.messaging.one_range import Asked
from tests.ranges.transactions.queue_ranges import Q, QueueRanges, advance, attempt, claim, counted

KEYS: Final = (b"a", b"b", b"n", b"o", b"x", b"y")
SEEDS: Final = 40
STEPS: Final = 60


class Story:
    """A random story.

    Args:
        seed: the seed.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        duplicates = self.random.choice(["ignore", "ignore", "replace"])
        self.store = QueueRanges(
            b"m", b"w", on_duplicate=duplicates, ack_wait=2.0, purge_after=3.0, max_attempts=None
        )
        self._asked: list[Asked] = []
        self._held: list[Attempt] = []
        self._number = 0
        self._leads_left = 2

    def play(self, steps: int) -> None:
        """Do random things, then let everything arrive, and judge."""
        acts: list[tuple[int, Callable[[], None]]] = [
            (8, self._enqueue), (4, self._settle), (4, self._claim), (10, self._go_on),
            (3, self._advance), (2, self._lose), (2, self._double), (1, self._take_over),
        ]  # fmt: skip
        try:
            for _ in range(steps):
                (act,) = self.random.choices([act for _, act in acts], [each for each, _ in acts])
                act()
            self._end()
            self._judge()
        finally:
            self.store.close()

    # --- acts

    def _commit(self, *writes: Any) -> None:
        put = [Put(self.random.choice(KEYS) + b"/%d" % self._number, b"")]
        every = [*(put if self.random.random() < 0.6 else []), *writes]
        self._asked.append(self.store.commit(*every))

    def _enqueue(self) -> None:
        self._number += 1
        made_up = self.random.random() < 0.5
        place = self.random.choice(KEYS)
        id_ = place + (b"made up %08d" % self._number if made_up else b"%d" % (self._number % 4))
        key = self.random.choice([id_, self.random.choice(KEYS)])
        group = self.random.choice(["", "", "a group", "n group", "y group"])
        payload = b"%d" % self._number
        self._commit(EnqueueInQueue(Q, key, "", id_, payload, group=group, is_unique=made_up))

    def _claim(self) -> None:
        with suppress(ValueError, AssertionError):  # it has to wait, or there is no lease just now
            self._held += map(attempt, claim(self._member(), 3))

    def _settle(self) -> None:
        if self._held:
            some = [self._held.pop() for _ in range(min(len(self._held), 2))]
            kind: Any = self.random.choice([Acknowledge, Acknowledge, RejectMessages])
            if self.random.random() < 0.2:
                kind, some = CancelMessages, [Attempt(*each_of(each)) for each in some]
            self._number += 1
            self._commit(kind(Q, some))

    def _member(self) -> Any:
        return self.random.choice(self.store.members)

    def _go_on(self) -> None:
        for member in self.store.members:
            member.pass_time(0.05)
        self.store.step()
        self.store.deliver_requests()
        self.store.deliver_answers()
        self._send_again()

    def _advance(self) -> None:
        seconds = self.random.choice([0.1, 1.0, 2.5])
        for member in self.store.members:
            member.pass_time(seconds)
            advance(member)

    def _lose(self) -> None:
        for sent in (self.store.network.packets, self.store.network.answers):
            if sent:
                sent.pop(self.random.randrange(len(sent)))

    def _double(self) -> None:
        for sent in (self.store.network.packets, self.store.network.answers):
            if sent:
                sent.append(self.random.choice(sent))

    def _take_over(self) -> None:
        if self._leads_left:  # each takes as long as a lease
            self._leads_left -= 1
            self._send_again()
            self.store.take_over(self.random.choice([1, 2, 3]))

    def _end(self) -> None:
        """Let everything arrive, and each client learn what has become of its transaction."""
        for _ in range(60):
            self.store.pass_time(0.7)
            late = self._send_again()
            if not (late or self.store.outgoing() or self.store.records()):
                return
        raise AssertionError("something waits for ever")

    def _send_again(self) -> bool:
        """Send transactions again whose outcomes are not known; return whether there are any."""
        late = [each for each in self._asked if self._is_unknown(each)]
        for each in late:
            self._asked.remove(each)
            self._asked.append(self.store.send(each.request))
        return bool(late) or not all(each.answers for each in self._asked)

    def _is_unknown(self, asked: Asked) -> bool:
        if not asked.answers:
            return False
        _, error = asked.answers[0]
        if isinstance(error, Error) and not isinstance(error, Unavailable):
            assert isinstance(error, LeaseLost | TransactionConflict | TransactionExpired), error
            return False
        return error is not None

    # --- judgement

    def _judge(self) -> None:
        told = [
            (write, answer)
            for asked in self._asked
            for write, answer in self._told(asked)
            if isinstance(write, EnqueueInQueue)
        ]
        inserted = [write for write, answer in told if answer is None]
        replaced = sum(answer == REPLACED for _, answer in told)  # or enqueued anew
        assert 0 <= self.store.counted().get("enqueued", 0) - len(inserted) <= replaced
        homes = self._homes()
        assert self.store.pointers() == {id_: home for id_, home in homes.items() if id_ != home}
        live = sum(counted(each).live for each in self.store.members)
        assert live <= len(homes)
        made_up = [each.id for each in inserted if each.is_unique]
        assert len(set(made_up)) == len(made_up)

    def _told(self, asked: Asked) -> list[tuple[Any, Any]]:
        [(committed, error)] = asked.answers
        if error is not None:
            return []
        writes = asked.request.writes
        return list(zip(writes, committed.answers or [None] * len(writes), strict=True))

    def _homes(self) -> dict[bytes, bytes]:
        """Return the homes of all messages that are stored, by id; each has one."""
        found: dict[bytes, bytes] = {}
        for member in self.store.members:
            for raw, _ in member.engine.iterate(*member.replica.bounds.data):
                end = raw.index(keys.END_OF_KEY, 1) + 2
                if raw[end : end + 1] == keys.QUEUE_BODY:
                    id_ = raw[raw.index(keys.END_OF_KEY, end) + 2 :]
                    assert id_ not in found, f"{id_!r} is there twice"
                    found[id_] = keys.user_key(raw)
        return found


def each_of(attempt: Attempt) -> tuple[bytes, str, bytes]:
    """Return the message of an attempt."""
    return attempt.home, attempt.kind, attempt.id


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_each_message_comes_home_once_whatever_happens(first: int) -> None:
    for seed in range(first, first + 10):
        Story(seed).play(STEPS)
