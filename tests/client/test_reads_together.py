"""Reads of one transaction that are under way at the same time, answered in any order.

The sender here is a script: it holds every request back until the test has it answered, at the
moment of the answer, as a node does. Others write in between. Whatever the order, all values are
those of the one timestamp at which the transaction says that it reads, and what it commits on is
what it has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import permutations
from random import Random  # noqa: TID251 (seeded)
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import postroom
import postroom.aio
from postroom.client.codec import resolve
from postroom.client.transaction import Transaction
from postroom.errors import CommitUnknown, TransactionClosed, TransactionConflict, Unavailable
from postroom.messaging.requests import Peek, Peeked, ReapedMessages, ReapQueue
from postroom.ranges.evaluators import INTEGER
from postroom.ranges.requests import (
    Committed,
    CommitTransaction,
    Get,
    GetForUpdate,
    GetMany,
    Pairs,
    Protect,
    ReleaseLocks,
    ReverseScan,
    Scan,
    Unprotect,
    Value,
    Values,
)
from tests.client.hand_driver import Running, _Waiting
from tests.client.stores import Store
from tests.remote.servers import Server

KEYS = (b"a", b"b")


class Script:
    """A sender, and the store behind it: versions of two keys, each the number of its commit."""

    def __init__(self) -> None:
        self.random = Random(1)
        self.patience_seconds = 0.0
        self.ranges, self.range_of = SimpleNamespace(are_several=False), None
        self.clock = 10
        self.versions: dict[bytes, list[int]] = {key: [1] for key in KEYS}
        self.held: list[_Waiting] = []
        self.seen: list[Any] = []

    def send(self, request: Any, timeout_seconds: float | None = None) -> _Waiting:
        waiting = _Waiting(request, None)
        self.held.append(waiting)
        return waiting

    def now(self) -> _Waiting:
        return self.send(None)

    def try_get(self, key: bytes) -> None:
        """Return no answer at once, since everything is asked for."""

    def reading(self) -> int:
        return self.clock

    def range_id(self, _: bytes) -> int:
        return 1

    def monotonic(self) -> float:
        return 0.0

    # --- the store

    def write(self, *keys: bytes) -> None:
        """Let another transaction commit."""
        self.clock += 1
        for key in keys:
            self.versions[key].append(self.clock)

    def answer(self, number: int) -> None:
        """Answer a request that is held back."""
        waiting = self.held.pop(number)
        self.clock += 1
        self.seen.append(waiting.request)
        try:
            waiting.complete(self._answered(waiting.request), None)
        except TransactionConflict as error:
            waiting.complete(None, error)

    def at(self, key: bytes, timestamp: int) -> bytes:
        return INTEGER.pack(max(each for each in self.versions[key] if each <= timestamp))

    def _answered(self, request: Any) -> Any:  # noqa: C901, PLR0911 - a table
        at = getattr(request, "timestamp", 0) or self.clock
        match request:
            case Get(key=key):
                return Value(self.at(key, at), at)
            case GetForUpdate(key=key):
                if self.versions[key][-1] > at:
                    raise TransactionConflict("changed")
                return Value(self.at(key, at), at)
            case GetMany(keys=keys):
                return Values([self.at(key, at) for key in keys], at)
            case Scan() | ReverseScan():
                return Pairs([(key, self.at(key, at)) for key in KEYS], None, at)
            case Peek():
                return Peeked([], False, at)
            case ReapQueue():
                return ReapedMessages([], False, 0)
            case CommitTransaction():
                return self._commit(request)
            case None:
                return self.clock
            case Protect() | Unprotect() | ReleaseLocks():
                return 0
        raise AssertionError(request)

    def _commit(self, request: CommitTransaction[Any]) -> Committed:
        read = {*request.reads, *(KEYS if request.spans else ())}
        if any(self.versions[key][-1] > request.read_timestamp for key in read):
            raise TransactionConflict("changed")
        return Committed(self.clock, [])


Call = Callable[[Transaction], Coroutine[Any, Any, Any]]


async def _scanned(tx: Transaction) -> list[bytes]:
    return [value async for _, value in tx.scan(b"a", b"c")]


async def _incremented(tx: Transaction) -> bytes:
    return INTEGER.pack(await tx.increment(b"b") - 1)


async def _put_if(tx: Transaction) -> None:
    with pytest.raises(postroom.errors.ConditionFailed) as failed:
        await tx.conditional_put(b"a", b"x", b"y")
    return failed.value.actual  # type: ignore[return-value]


CALLS: dict[str, Call] = {
    "get a": lambda tx: tx.get(b"a"),
    "get b": lambda tx: tx.get(b"b"),
    "get_many": lambda tx: tx.get_many([b"a", b"b"]),
    "scan": _scanned,
    "for update b": lambda tx: tx.get_for_update(b"b"),
    "increment b": _incremented,
    "conditional_put a": _put_if,
    "peek": lambda tx: tx.peek(b"q"),
    "reap": lambda tx: tx.reap_queue(b"q"),
}


class Played:
    """Calls that begin at the same time in one transaction."""

    def __init__(self, *names: str) -> None:
        self.script = Script()
        self.tx = Transaction(self.script, resolve(None), b"t" * 16, 60.0)
        self.names = names
        self.running = [Running(CALLS[name](self.tx)) for name in names]

    def go_on(self) -> None:
        while sum(each.go_on() for each in self.running):
            pass

    def answer(self, number: int) -> None:
        if self.script.held:
            self.script.answer(number % len(self.script.held))
            self.go_on()

    def finish(self) -> list[Any]:
        """Return the results; ``None`` in place of a refused one."""
        while self.script.held:
            self.answer(0)
        results: list[Any] = []
        for each in self.running:
            try:
                results.append(each.result())
            except TransactionConflict:
                results.append(None)
        return results

    def _seen_of_b(self, at: int) -> list[bytes]:
        """Return the value at a time, and what the increments so far have made of it."""
        (number,) = INTEGER.unpack(self.script.at(b"b", at))
        increments = self.names.count("increment b")
        return [INTEGER.pack(number + each) for each in range(increments + 1)]

    def check(self) -> bool:
        """Return whether all was read at one timestamp, and check that the commit tells so."""
        results = self.finish()
        at = self.tx.read_timestamp
        for name, result in zip(self.names, results, strict=True):
            if result is None or name in ("peek", "reap"):
                continue
            assert at is not None
            a, b = self.script.at(b"a", at), self._seen_of_b(at)
            if name in ("get_many", "scan"):
                assert result[0] == a, name
                assert result[1] in b, name
            else:
                assert result in ([a] if name.endswith(" a") else b), name
        seen = {key: self.script.at(key, at) for key in KEYS} if at else {}
        self.tx.put(b"c", b"x")
        self.running = [Running(self.tx.commit())]
        committed = self.finish() != [None]
        if committed:
            newest = {key: INTEGER.pack(self.script.versions[key][-1]) for key in KEYS}
            read = {*self.tx._reads.keys, *(KEYS if self.tx._reads.spans else ())}
            assert {key: seen[key] for key in read} == {key: newest[key] for key in read}
        return committed


@pytest.mark.parametrize("order", list(permutations(range(2))))
@pytest.mark.parametrize("when", range(4))
@pytest.mark.parametrize("other", CALLS)
def test_a_lock_and_another_read_lose_no_update(
    other: str, when: int, order: tuple[int, ...]
) -> None:
    """``gather(tx.get_for_update(b), tx.get(a))``, while another one writes both."""
    played = Played("for update b", other)
    for number, each in enumerate((*order, 0, 0)):
        if number == when:
            played.script.write(*KEYS)
        played.answer(each)
    played.check()


def test_unchanged_keys_are_read_and_committed_in_any_order() -> None:
    for order in permutations(range(3)):
        played = Played("for update b", "get a", "scan")
        for each in order:
            played.answer(each)
        assert played.check()


@given(
    names=st.lists(st.sampled_from(sorted(CALLS)), min_size=1, max_size=4),
    steps=st.lists(
        st.one_of(
            st.integers(0, 3),
            st.sets(st.sampled_from(KEYS), min_size=1).map(lambda keys: tuple(sorted(keys))),
        ),
        max_size=12,
    ),
)
def test_any_calls_in_any_order(names: list[str], steps: list[Any]) -> None:
    played = Played(*names)
    for step in steps:
        if isinstance(step, int):
            played.answer(step)
        else:
            played.script.write(*step)
    played.check()


def test_increments_at_the_same_time_are_all_counted() -> None:
    played = Played("increment b", "increment b", "increment b")
    assert sorted(played.finish()) == [INTEGER.pack(number) for number in (1, 2, 3)]


def test_a_read_that_others_share_is_made_once() -> None:
    played = Played("get a")
    played.finish()
    assert [type(each) for each in played.script.seen] == [Get]


def test_a_read_sees_own_writes_made_while_it_is_under_way() -> None:
    played = Played("get b", "get_many")
    played.tx.put(b"b", b"mine")
    first, both = played.finish()
    assert (first, both[1]) == (b"mine", b"mine")


# --- while it commits


def test_a_call_cannot_join_a_transaction_that_is_being_committed() -> None:
    played = Played()
    played.tx.put(b"c", b"x")
    committing = Running(played.tx.commit())
    with pytest.raises(TransactionClosed, match="being committed"):
        played.tx.put(b"d", b"x")
    for refused in (played.tx.get(b"a"), played.tx.commit(), played.tx.rollback()):
        with pytest.raises(TransactionClosed, match="being committed"):
            Running(refused).result()
    played.script.answer(0)
    committing.go_on()
    assert committing.result() == played.tx.commit_timestamp


def test_a_read_that_is_answered_too_late_is_refused() -> None:
    """It is not among what the commit has checked."""
    played = Played("get a", "for update b")
    played.tx.put(b"c", b"x")
    played.running.append(Running(played.tx.commit()))
    played.script.answer(2)
    played.go_on()
    while played.script.held:
        played.answer(0)
    for late in played.running[:2]:
        with pytest.raises(TransactionClosed):
            late.result()
    assert type(played.script.seen[-1]) is ReleaseLocks


@pytest.mark.parametrize("error", [CommitUnknown("?"), asyncio.CancelledError()])
def test_a_commit_that_is_unknown_can_be_repeated(error: BaseException) -> None:
    played = Played()
    played.tx.put(b"c", b"x")
    committing = Running(played.tx.commit())
    played.script.held.pop().complete(None, error)
    committing.go_on()
    while played.script.held:
        played.script.answer(0)
        committing.go_on()
    with pytest.raises(type(error)):
        committing.result()
    assert not played.tx.closed
    again = Running(played.tx.commit())
    played.script.held.pop().complete(None, Unavailable("later"))
    again.go_on()
    with pytest.raises(CommitUnknown):
        again.result()
    assert not played.tx.closed


# --- on a store


def test_reads_at_the_same_time_on_a_store(store: Store) -> None:
    with store.db.begin() as tx:
        tx.put(b"a", b"1")
        tx.put(b"b", b"1")
    tx = store.core.begin()
    reads: list[Any] = [tx.get_for_update(b"b"), tx.get(b"a"), tx.get_many([b"a", b"b"])]
    for read in (*reads, tx.peek(b"q")):
        store.driver.later(read)
    store.driver.settle()
    tx.put(b"c", b"1")
    store.db.put(b"a", b"2")
    with pytest.raises(TransactionConflict):
        store.driver.run(tx.commit())


def test_gather_over_the_network_reads_at_one_timestamp() -> None:
    async def body() -> None:
        async with await postroom.aio.connect(server.address, insecure=True) as db:
            names = [b"%d" % number for number in range(20)]

            async def write_all(value: bytes) -> None:
                async with db.begin() as tx:
                    for name in names:
                        tx.put(name, value)

            await write_all(b"0")
            for number in range(10):
                tx = db.begin()
                writing = asyncio.create_task(write_all(b"%d" % number))
                values = await asyncio.gather(*(tx.get(name) for name in names))
                assert len(set(values)) == 1
                await writing
                await tx.rollback()

    with Server() as server:
        asyncio.run(body())
