"""The largest sizes that limits allow, and larger ones: turns of 50 ms at most, and bounded memory.

Short forms of these tests (``tests/attacks``) look closely; here all is taken at its full size.
"""

from __future__ import annotations

from pathlib import Path
from random import Random  # noqa: TID251 (seeded)

import pytest

from postroom import limits
from postroom.messaging.requests import EnqueueUpdate, Inbox, ListInboxes
from postroom.ranges.requests import DeleteRange, Get, GetMany, Put, ReverseScan, Scan
from tests.attacks.hostile import Attacker
from tests.large.conftest import INBOXES, KEYS, Opened
from tests.large.measured import Served, in_order_of_age

MIB = 1024 * 1024


def key(number: int) -> bytes:
    return b"key/%08d" % number


# --- delete_range


def test_a_deletion_of_a_million_keys_at_once_says_what_to_do_instead(
    a_million_keys: Path, opened: Opened
) -> None:
    target = opened(a_million_keys)
    attacker, served = Attacker(target, b"attacker"), Served(target, Get(key(1)))

    def delete() -> None:
        number = attacker.ask(attacker.commit(DeleteRange(b"key/", b"key0")))
        assert served.until(attacker, number) > 20
        name, message, _ = attacker.failures[number]
        assert name == "TransactionTooLarge"
        assert "enqueue_update(DeleteRange" in message

    target.bounded(delete, more_bytes_max=1024 * MIB)
    assert sum(1 for _ in target.store.db.scan()) == KEYS, "nothing was deleted"
    target.check_alive()


def test_the_keys_that_a_transaction_holds_are_deleted_at_one_moment(
    a_million_keys: Path, opened: Opened
) -> None:
    target, count = opened(a_million_keys), 180_000
    attacker = Attacker(target, b"attacker")
    served = Served(target, GetMany([key(0), key(count - 1)]))
    starts = iter((0, count, 2 * count))

    def delete() -> None:
        first = next(starts)
        request = attacker.commit(DeleteRange(key(first), key(first + count)))
        number = attacker.ask(request)
        assert served.until(attacker, number) > 20
        assert attacker.answers[number][1] == [count]

    target.bounded(delete, more_bytes_max=1024 * MIB)
    for values, *_ in served.answers.values():
        assert values in ([b"v", b"v"], [None, None]), "all of it, or nothing"
    target.check_alive()


def test_a_deferred_deletion_of_a_million_keys_goes_on_in_steps(
    a_million_keys: Path, opened: Opened
) -> None:
    target = opened(a_million_keys)
    attacker, served = Attacker(target, b"attacker"), Served(target, Get(b"elsewhere"))
    steps: dict[int, int] = {}
    ends = iter((100_000, 200_000, 300_000))

    def delete(last: int) -> None:
        first, before = max(steps, default=0), target._steps()
        update = EnqueueUpdate(DeleteRange(key(first), key(last)))
        attacker.result(attacker.commit(update))
        while target.store.counters().pending:
            served.until(attacker, attacker.ask(Get(b"elsewhere")))
        steps[last] = target._steps() - before

    target.bounded(lambda: delete(next(ends)), more_bytes_max=256 * MIB)
    # All that is left, at once: this cannot be repeated, so it may take half as long again.
    target.bounded(lambda: delete(KEYS), more_bytes_max=256 * MIB, attempts=1, times=1.5)
    first, last, most = min(steps), KEYS - sorted(steps)[-2], steps[KEYS]
    assert most / last < 1.1 * steps[first] / first, "it is linear"
    assert most < 8 * last
    assert list(target.store.db.scan()) == []
    assert target.store.counters().executed == len(steps)

    def scan_back() -> None:
        assert scanned(attacker, b"", b"z", back=True) == 0

    target.bounded(scan_back, more_bytes_max=64 * MIB)
    target.check_alive()


# --- reads of a transaction


def test_a_commit_with_200_000_spans_is_checked_over_turns(
    a_million_keys: Path, opened: Opened
) -> None:
    target = opened(a_million_keys)
    at = int(target.store.db.now())
    target.store.db.put(b"elsewhere", b"v")
    spans = [(key(number), key(number) + b"\x00") for number in range(0, KEYS, 5)]
    assert len(spans) == 200_000
    Random(1).shuffle(spans)
    attacker, served = Attacker(target, b"attacker"), Served(target, Get(key(1)))

    def commit() -> None:
        request = attacker.commit(Put(b"k", b"v"), at=at, spans=spans)
        number = attacker.ask(request)
        assert served.until(attacker, number) > 20
        assert number in attacker.answers, attacker.failures[number]

    target.bounded(commit, more_bytes_max=256 * MIB)
    target.store.db.put(key(999_995), b"changed")
    name, message, _ = attacker.failure(attacker.commit(Put(b"k", b"v"), at=at, spans=spans))
    assert (name, "999995" in message) == ("TransactionConflict", True)
    target.check_alive()


# --- reading


def test_get_many_of_four_million_keys(a_million_keys: Path, opened: Opened) -> None:
    """More than one request may name: it is refused before anything is read. In parts it is not."""
    target = opened(a_million_keys)
    attacker, served = Attacker(target, b"attacker"), Served(target, Get(key(1)))
    wanted = [b"%07d" % (number * 7919 % (4 * KEYS)) for number in range(4 * KEYS)]

    def ask_at_once() -> None:
        number = attacker.ask(GetMany(wanted))
        assert served.until(attacker, number) > 20
        name, message, _ = attacker.failures[number]
        assert name == "ValueTooLarge"
        assert str(limits.REQUEST_ITEMS_MAX) in message

    target.bounded(ask_at_once, more_bytes_max=512 * MIB)

    def ask_in_parts() -> None:
        for first in range(0, 4 * KEYS, KEYS):
            left = wanted[first : first + KEYS]
            number = attacker.ask(GetMany(left))
            assert served.until(attacker, number) > 5
            values, *_ = attacker.answers.pop(number)
            assert 0 < len(values) <= limits.TURN_STEPS_MAX + 1

    target.bounded(ask_in_parts, more_bytes_max=512 * MIB)
    target.check_alive()


def test_a_client_that_asks_for_four_million_keys_is_told_all(
    a_million_keys: Path, opened: Opened
) -> None:
    target = opened(a_million_keys)
    wanted = [key(number * 7919 % (4 * KEYS)) for number in range(4 * KEYS)]

    def ask() -> None:
        told = target.store.db.get_many(wanted)
        assert len(told) == 4 * KEYS
        assert told.count(None) == 3 * KEYS
        assert told[0] == b"v"

    target.bounded(ask)
    target.check_alive()


def test_get_many_of_2_000_values_of_a_mebibyte(opened: Opened) -> None:
    target, count = opened(None), 2000
    for number in range(count):
        target.store.db.put(b"%04d" % number, b"%04d" % number + bytes(MIB - 4))
    wanted = [b"%04d" % number for number in range(count)]
    attacker, served = Attacker(target, b"attacker"), Served(target, Get(b"k"))

    def ask() -> None:
        left = wanted
        while left:
            number = attacker.ask(GetMany(left))
            served.until(attacker, number)
            values, *_ = attacker.answers.pop(number)
            assert 0 < len(values) <= 9
            told = [value[:4] for value in values]
            assert told == left[: len(values)]
            left = left[len(values) :]

    target.bounded(ask, more_bytes_max=128 * MIB)
    target.check_alive()


def scanned(attacker: Attacker, start: bytes, end: bytes, *, back: bool) -> int:
    """Go through a span page by page, each as large as the node makes it; count the pairs."""
    found, pages, size = 0, 0, 1 << 40
    while True:
        kind = ReverseScan if back else Scan
        pairs, resume, *_ = attacker.result(kind(start, end, 0, size, 1 << 62))
        attacker.answers.clear()
        found += len(pairs)
        pages += 1
        if resume is None:
            assert pages > 20
            return found
        start, end = (start, resume) if back else (resume, end)


@pytest.mark.parametrize("back", [False, True], ids=["scan", "reverse scan"])
def test_a_scan_of_a_million_keys(a_million_keys: Path, opened: Opened, *, back: bool) -> None:
    target = opened(a_million_keys)
    attacker = Attacker(target, b"attacker")

    def scan() -> None:
        assert scanned(attacker, b"", b"z", back=back) == KEYS

    target.bounded(scan, more_bytes_max=64 * MIB)
    first = next(iter(target.store.db.scan(reverse=back, limit=1)))
    assert first == (key(KEYS - 1 if back else 0), b"v")
    target.check_alive()


# --- inboxes


def test_inboxes_over_two_million(two_million_inboxes: Path, opened: Opened) -> None:
    target = opened(two_million_inboxes)
    attacker, served = Attacker(target, b"attacker"), Served(target, Get(b"k"))
    most = limits.INBOXES_LISTED_MAX
    told: list[list[Inbox]] = []

    def list_(inboxes_max: int) -> None:
        number = attacker.ask(ListInboxes(b"", None, inboxes_max))
        assert served.until(attacker, number) > 100
        told.append(attacker.answers[number])

    for inboxes_max in (5, most):
        target.bounded(lambda count=inboxes_max: list_(count), more_bytes_max=64 * MIB)
        assert len(told[-1]) == inboxes_max
        assert [each[0] for each in told[-1]] == in_order_of_age(INBOXES)[:inboxes_max]

    def list_all() -> None:
        number = attacker.ask(ListInboxes(b"", None, 1 << 40))
        served.until(attacker, number)
        name, message, _ = attacker.failures[number]
        assert (name, str(most) in message) == ("Invalid", True)

    target.bounded(list_all, more_bytes_max=64 * MIB)
    assert len(target.store.db.inboxes(b"0123/1", b"0123/2", limit=50_000)) == 1000
    target.check_alive()
