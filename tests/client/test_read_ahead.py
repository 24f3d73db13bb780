"""A reaper of an inbox gets what was read ahead, and that is always what is there."""

from __future__ import annotations

import datetime
from random import Random  # noqa: TID251 (seeded)

import pytest

import postroom
from postroom.messaging.inbox_reads import ReadAhead
from tests.client.postponed import KEY, postpone, send
from tests.client.stores import Store


def test_the_engine_is_asked_once_for_many_reaps(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    read = ReadAhead.read
    monkeypatch.setattr(
        ReadAhead, "read", lambda self, *args: reads.append(read(self, *args)) or reads[-1]
    )
    send(store.db, *(b"%d" % number for number in range(100)))
    seen: list[object] = []
    for _ in range(90):
        with store.db.begin() as tx:
            seen += [message.value for message in tx.reap_queue(KEY, 1)]
    assert seen == [b"%d" % number for number in range(90)]
    assert reads == [0, 98]


class Chance:
    """One who goes through an inbox, and others who do anything to it meanwhile."""

    def __init__(self, seed: int) -> None:
        self.store = Store()
        self.chance = Random(seed)
        self.sent = self.taken = 0
        self.holding: list[tuple[postroom.Transaction, set[str]]] = []

    def reap(self, tx: postroom.Transaction) -> set[str]:
        held: set[str] = set().union(*(ids for _, ids in self.holding))
        most = self.chance.choice([1, 1, 2, 5, 30])
        there = self.store.db.peek(KEY, 1000)
        free = [each.id for each in there if each.id not in held][:most]
        assert [each.id for each in tx.reap_queue(KEY, most)] == free
        return set(free)

    def take(self) -> None:
        with self.store.db.begin() as tx:
            self.taken += len(self.reap(tx))

    def send(self) -> None:
        number, seconds = self.chance.choice([1, 3, 60]), self.chance.choice([0, 0, 5])
        send(self.store.db, *number * [b"m"], deliver_at=datetime.timedelta(seconds=seconds))
        self.sent += number

    def wait(self) -> None:
        self.store.advance(self.chance.choice([1, 4]))

    def postpone(self) -> None:
        if not self.holding:
            postpone(self.store.db, self.chance.choice([1, 4]), self.chance.choice([0, 5]))

    def hold(self) -> None:
        if len(self.holding) < 3:
            tx = self.store.db.begin()
            self.holding.append((tx, self.reap(tx)))

    def let_go(self) -> None:
        if self.holding:
            tx, ids = self.holding.pop(self.chance.randrange(len(self.holding)))
            if self.chance.random() < 0.5:
                tx.commit()
                self.taken += len(ids)
            else:
                tx.rollback()


@pytest.mark.parametrize("seed", range(5))
def test_a_reap_is_given_the_first_that_are_free(seed: int) -> None:
    one = Chance(seed)
    kinds = [one.take, one.send, one.wait, one.postpone, one.hold, one.let_go]
    for _ in range(300):
        one.chance.choices(kinds, [10, 2, 2, 1, 2, 3])[0]()
    while one.holding:
        one.let_go()
    one.store.advance(10)
    assert one.taken > 100
    assert one.taken + len(one.store.db.peek(KEY, 10_000)) == one.sent


def test_a_scheduled_message_comes_in_its_place(store: Store) -> None:
    send(store.db, b"1", b"2", b"3", b"4")
    send(store.db, b"5", deliver_at=datetime.timedelta(seconds=10))
    send(store.db, b"6", b"7", b"8")
    seen: list[object] = []
    for number in range(8):
        if number == 3:
            store.advance(11)
        with store.db.begin() as tx:
            seen += [message.value for message in tx.reap_queue(KEY, 1)]
    assert seen == [b"%d" % number for number in range(1, 9)]


def test_messages_that_come_back_around_a_given_one_are_not_passed_over(store: Store) -> None:
    later = datetime.timedelta(seconds=10)
    send(store.db, b"1")
    send(store.db, b"2", deliver_at=later)
    send(store.db, b"3", b"4", b"5")
    send(store.db, b"6", deliver_at=later)
    send(store.db, *(b"%d" % number for number in range(7, 20)))

    def take() -> list[object]:
        with store.db.begin() as tx:
            return [message.value for message in tx.reap_queue(KEY, 1)]

    assert take() + take() == [b"1", b"3"]
    holder = store.db.begin()
    assert [message.value for message in holder.reap_queue(KEY, 1)] == [b"4"]
    store.advance(11)  # 2 and 6 arrive together
    assert take() == [b"2"]
    holder.commit()
    seen = [value for _ in range(15) for value in take()]
    assert seen == [b"%d" % number for number in range(5, 20)]
