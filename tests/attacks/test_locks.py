"""A client that locks thousands of keys, and keeps them or goes away: writers of these keys get on.

Time passes with the turns here. ``tests/ranges/test_lock_memory.py`` tests what a transaction, a
client and a range may lock.
"""

from __future__ import annotations

from typing import Any

import pytest

from postroom.limits import LOCK_WAIT_SECONDS_MAX, LOCKS_AT_ONCE_MAX, LOCKS_MAX
from postroom.ranges.requests import Get, Lock, Put
from tests.attacks.hostile import Attacker, Target

KEYS = 4096
TURN_SECONDS = 0.1
SECONDS_MAX = 60.0
GONE_SECONDS = 5.0
"""A client that says nothing for this time is gone."""
WRITERS = 5


def key(number: int) -> bytes:
    return b"locked/%05d" % number


def lock_all(attacker: Attacker, count: int, transaction: int = 1) -> list[int]:
    """Ask for locks of so many keys; return the numbers of the requests."""
    began = attacker.target.store.node.clock.reading()
    id_ = attacker.transaction_id(transaction)
    numbers = []
    for first in range(0, count, LOCKS_AT_ONCE_MAX):
        keys = [key(number) for number in range(first, min(first + LOCKS_AT_ONCE_MAX, count))]
        numbers.append(attacker.ask(Lock(keys, [], id_, SECONDS_MAX, began)))
        attacker.target.until(lambda: attacker.read() >= 0 and attacker.has(numbers[-1]))
    return numbers


def pass_time(target: Target, alive: list[Attacker], seconds: float) -> None:
    """Let time pass; only these clients say something meanwhile."""
    for _ in range(round(seconds / TURN_SECONDS)):
        target.store.clock.seconds += TURN_SECONDS
        for each in alive:
            each.say(1, 0, [], [], True)
        target.turn()
        for each in alive:
            each.read()
    target.settle()
    for each in alive:
        each.read()


def begin_to_write(target: Target) -> list[tuple[Attacker, int]]:
    """Have each of some writers ask for a write of a locked key."""
    found = []
    for number in range(WRITERS):
        writer = Attacker(target, b"writer%d" % number, "ipv4:10.0.0.9:1")
        put: Any = Put(key(number * (KEYS // WRITERS)), b"new")
        found.append((writer, writer.ask(writer.commit(put))))
    pass_time(target, [writer for writer, _ in found], TURN_SECONDS)
    return found


def test_writers_get_on_when_a_client_that_locked_thousands_of_keys_has_gone(
    target: Target,
) -> None:
    attacker = Attacker(target, b"attacker")
    lock_all(attacker, KEYS)
    assert not attacker.failures, "it has all of them"
    writing = begin_to_write(target)
    assert not any(writer.has(number) for writer, number in writing), "they wait for the locks"
    pass_time(target, [writer for writer, _ in writing], GONE_SECONDS + 1.0)
    assert all(number in writer.answers for writer, number in writing)
    target.check_alive()


def test_writers_are_told_in_time_when_a_client_keeps_its_locks(target: Target) -> None:
    attacker = Attacker(target, b"attacker")
    lock_all(attacker, KEYS)
    writing = begin_to_write(target)
    writers = [writer for writer, _ in writing]
    pass_time(target, [attacker, *writers], LOCK_WAIT_SECONDS_MAX + 1.0)
    for writer, number in writing:
        name, *_ = writer.failures[number]
        assert name == "TransactionConflict", "nothing was changed, and run() tries again"
        assert writer.result(Get(key(0)))[0] is None, "a lock keeps nobody from reading"
    pass_time(target, [attacker, *writers], SECONDS_MAX)
    for writer, _ in writing:
        writer.result(writer.commit(Put(key(0), b"new")))
    target.check_alive()


@pytest.mark.parametrize("stays", [True, False], ids=["a client that stays", "one that goes"])
def test_a_transaction_that_locks_too_many_keys_is_refused(target: Target, stays: bool) -> None:
    attacker = Attacker(target, b"attacker")
    numbers = lock_all(attacker, LOCKS_MAX + LOCKS_AT_ONCE_MAX)
    refused = [number for number in numbers if number in attacker.failures]
    assert refused
    assert {attacker.failures[number][0] for number in refused} == {"TransactionTooLarge"}
    polite = Attacker(target, b"polite", "ipv4:10.0.0.9:1")
    polite.result(polite.commit(Put(b"other", b"new")))
    pass_time(target, [attacker, polite] if stays else [polite], SECONDS_MAX + 1.0)
    polite.result(polite.commit(Put(key(0), b"new")))
    target.check_alive()
