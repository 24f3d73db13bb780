"""The store against a model: plain dictionaries and lists, changed by the same transactions.

Hypothesis makes up the transactions, and what breaks between them and in the middle of one: the
power, single writes, the clock. After each step the store holds what the model holds: values,
inboxes in order, dead letters, accounting.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import postroom
from postroom.errors import CommitUnknown, ConditionFailed, Unavailable, WrongType
from postroom.kv.clock import LOGICAL_BITS
from postroom.kv.log_device import WriteFault
from postroom.ranges.requests import Accounting, Delete, DeleteRange, Increment, Put
from postroom.server.assembly import NodeOptions
from tests.sim.cluster.embedded import EmbeddedStore
from tests.sim.history import History
from tests.sim.turn import PowerFailure, ProcessDied

LATER_SECONDS = 100_000.0
"""A time longer than all the clocks of a run are set forward together."""

keys_ = st.sampled_from([b"", b"a", b"a\x00", b"a\x00\x01", b"b", b"\xff", b"\xff\xff"])
values = st.sampled_from([b"", b"text", (5).to_bytes(8, "big")])
numbers = st.integers(-3, 3)
delays = st.sampled_from([None, None, LATER_SECONDS])
updates = st.one_of(
    st.builds(Put, keys_, values),
    st.builds(Increment, keys_, numbers),
    st.builds(Delete, keys_),
    st.builds(DeleteRange, keys_, st.one_of(st.none(), keys_)),
    st.builds(Accounting, st.sampled_from([b"x/y", b"x/z"]), st.just({"n": 1})),
)
operations = st.one_of(
    st.tuples(st.just("put"), keys_, values),
    st.tuples(st.just("delete"), keys_),
    st.tuples(st.just("delete_range"), keys_, st.one_of(st.none(), keys_)),
    st.tuples(st.just("increment"), keys_, numbers),
    st.tuples(st.just("conditional_put"), keys_, values, st.one_of(st.none(), values)),
    st.tuples(st.just("get"), keys_),
    st.tuples(st.just("scan"), keys_, st.one_of(st.none(), keys_), st.booleans()),
    st.tuples(st.just("send"), keys_, delays),
    st.tuples(st.just("defer"), updates, delays),
    st.tuples(st.just("reap"), keys_, st.integers(1, 3)),
)


class Refused(Exception):
    """The model's way of saying ``WrongType`` or ``ConditionFailed``."""


@dataclass
class Model:
    """The expected content of the store. A message is (commit timestamp, ordinal, payload)."""

    data: dict[bytes, bytes] = field(default_factory=dict)
    inboxes: dict[bytes, list[tuple[int, int, bytes]]] = field(default_factory=dict)
    later: list[tuple[str, Any]] = field(default_factory=list)
    dead: list[tuple[bytes, int]] = field(default_factory=list)
    sums: Counter[bytes] = field(default_factory=Counter)

    def increment(self, key: bytes, by: int) -> int:
        stored = self.data.get(key)
        if stored is not None and len(stored) != 8:
            raise Refused
        number = postroom.integer(stored) + by
        self.data[key] = number.to_bytes(8, "big", signed=True)
        return number

    def span(self, start: bytes, end: bytes | None) -> list[tuple[bytes, bytes]]:
        return sorted(
            (key, value)
            for key, value in self.data.items()
            if key >= start and (end is None or key < end)
        )

    def delete_range(self, start: bytes, end: bytes | None) -> int:
        found = self.span(start, end)
        for key, _ in found:
            del self.data[key]
        return len(found)

    def deliver(self, key: bytes, message: tuple[int, int, bytes]) -> None:
        self.inboxes.setdefault(key, []).append(message)
        self.inboxes[key].sort()

    def execute(self, update: Any) -> None:
        match update:
            case Put(key=key, value=value):
                self.data[key] = value
            case Delete(key=key):
                self.data.pop(key, None)
            case DeleteRange(start=start, end=end):
                self.delete_range(start, end)
            case Accounting(key=key):
                self.sums.update([key, key[:1]])
            case Increment(key=key, by=by):
                try:
                    self.increment(key, by)
                except Refused:
                    self.dead.append((key, by))

    def become_due(self) -> None:
        """Let all that was scheduled for later happen, in order."""
        later, self.later = self.later, []
        for kind, what in later:
            if kind == "message":
                self.deliver(*what)
            else:
                self.execute(what)


class Attempt:
    """One transaction, on the store and on a copy of the model."""

    def __init__(self, tx: Any, model: Model, payloads: Any) -> None:
        self.tx = tx
        self.model = model
        self.sends: list[tuple[str, Any, float | None]] = []
        self._payloads = payloads

    async def do(self, operation: tuple[Any, ...]) -> None:
        """Carry out one operation, with the same outcome on both sides."""
        name, *arguments = operation
        await getattr(self, f"_{name}")(*arguments)

    async def _put(self, key: bytes, value: bytes) -> None:
        self.tx.put(key, value)
        self.model.data[key] = value

    async def _delete(self, key: bytes) -> None:
        self.tx.delete(key)
        self.model.data.pop(key, None)

    async def _delete_range(self, start: bytes, end: bytes | None) -> None:
        assert await self.tx.delete_range(start, end) == self.model.delete_range(start, end)

    async def _increment(self, key: bytes, by: int) -> None:
        expected: int | None
        try:
            expected = self.model.increment(key, by)
        except Refused:
            expected = None
        try:
            assert await self.tx.increment(key, by) == expected
        except WrongType:
            assert expected is None

    async def _conditional_put(self, key: bytes, value: bytes, expected: bytes | None) -> None:
        actual = self.model.data.get(key)
        try:
            await self.tx.conditional_put(key, value, expected)
        except ConditionFailed as failed:
            held, succeeds = failed.actual, False
        else:
            held, succeeds = expected, True
            self.model.data[key] = value
        assert held == actual
        assert succeeds == (actual == expected)

    async def _get(self, key: bytes) -> None:
        assert await self.tx.get(key) == self.model.data.get(key)

    async def _scan(self, start: bytes, end: bytes | None, reverse: bool) -> None:
        found = [pair async for pair in self.tx.scan(start, end, reverse=reverse)]
        expected = self.model.span(start, end)
        assert found == (expected[::-1] if reverse else expected)

    async def _send(self, key: bytes, delay: float | None) -> None:
        payload = next(self._payloads)
        self.tx.enqueue_message(key, payload, deliver_at=delay)
        self.sends.append(("message", (key, payload), delay))

    async def _defer(self, update: Any, delay: float | None) -> None:
        self.tx.enqueue_update(update, execute_at=delay)
        self.sends.append(("update", update, delay))

    async def _reap(self, key: bytes, most: int) -> None:
        waiting = self.model.inboxes.get(key, [])
        reaped = await self.tx.reap_queue(key, most)
        assert [message.value for message in reaped] == [each[2] for each in waiting[:most]]
        assert reaped.more == (len(waiting) > most)
        del waiting[:most]

    def committed(self, timestamp: int) -> Model:
        """Return the model with everything that the transaction sent."""
        for ordinal, (kind, what, delay) in enumerate(self.sends, start=1):
            if kind == "message":
                key, payload = what
                what = key, (timestamp, ordinal, payload)  # noqa: PLW2901
            if delay is not None:
                self.model.later.append((kind, what))
            elif kind == "message":
                self.model.deliver(*what)
            else:
                self.model.execute(what)
        return self.model


class StoreAgainstModel(RuleBasedStateMachine):
    """A machine that compares a simulated store with a model."""

    def __init__(self) -> None:
        super().__init__()
        options = NodeOptions(disk_reserve_bytes=0, poll_seconds=1.0, gc_interval_seconds=30.0)
        self.store = EmbeddedStore(0, options, in_parts=False)
        self.history = History()
        self.store.witness = self.history
        self.store.heals = True
        self.db = self.store.database()
        self.model = Model()
        self.payloads = (b"%d" % number for number in range(1_000_000))

    @initialize()
    def begin(self) -> None:
        assert self.store.machine.open()

    @rule(
        what=st.lists(operations, min_size=1, max_size=6),
        commits=st.sampled_from([True, True, True, False]),
    )
    def transact(self, what: list[tuple[Any, ...]], commits: bool) -> None:
        self.store.run(self._transact(what, commits=commits))
        self.store.retry(self.db.drain, self.db)

    async def _transact(self, what: list[tuple[Any, ...]], *, commits: bool) -> None:
        attempt = Attempt(self.db.begin(), copy.deepcopy(self.model), self.payloads)
        try:
            for operation in what:
                await attempt.do(operation)
            if not commits:
                await attempt.tx.rollback()
                return
            timestamp = await self._commit(attempt.tx)
        except Unavailable:
            return
        self.model = attempt.committed(timestamp)

    async def _commit(self, tx: Any) -> int:
        """Commit until it is known whether it has happened."""
        while True:
            try:
                return await tx.commit()  # type: ignore[no-any-return]
            except CommitUnknown:
                await self.db._sender.sleep(0.1)

    @rule(number=st.integers(1, 3), power=st.booleans())
    def crash_soon(self, number: int, power: bool) -> None:
        """Crash at one of the next writes, most likely in the middle of a transaction."""
        disk = self.store.machine.disk
        fatal = disk.writes + number

        def fail(write: int) -> None:
            if write >= fatal:
                disk.at_write = None
                raise PowerFailure if power else ProcessDied

        disk.at_write = fail

    @rule(number=st.integers(1, 3), fault=st.sampled_from(WriteFault))
    def fail_soon(self, number: int, fault: WriteFault) -> None:
        disk = self.store.machine.disk
        disk.write_faults[disk.writes + number] = fault

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        self.store.machine.crash(power=power)

    @rule()
    def close(self) -> None:
        if self.store.machine.node is not None:
            self.store.machine.close()

    @rule(seconds=st.sampled_from([-3600.0, -1.0, 0.5, 10.0, 100.0]))
    def set_clock(self, seconds: float) -> None:
        self.store.clock.set_wall(seconds)

    @rule()
    def wait(self) -> None:
        """Wait until everything that was scheduled is due, and old versions are collected."""
        store = self.store
        now = store.retry(self._now, self.db)
        until = (now >> LOGICAL_BITS) / 1000 + 2 * LATER_SECONDS
        store.clock.set_wall(max(until - store.clock.wall_milliseconds() / 1000, 0))
        store.let_pass(100.0)
        store.retry(self.db.drain, self.db)
        self.model.become_due()

    async def _now(self) -> int:
        return self.db.now()

    @rule(discards=st.booleans())
    def look_after_the_dead(self, discards: bool) -> None:
        """Discard or replay them all; a replayed one is carried out, or dies again."""
        before = self.store.retry(self.db.status, self.db)
        happened = self.store.run(self._revive_or_bury(discards=discards))
        self.store.retry(self.db.drain, self.db)
        if happened is None:  # the counters tell its outcome
            after = self.store.retry(self.db.status, self.db)
            happened = (after.executed, after.counters.discarded) != (
                before.executed,
                before.counters.discarded,
            )
        if happened:
            dead, self.model.dead = self.model.dead, []
            for key, by in dead if not discards else ():
                self.model.execute(Increment(key, by))

    async def _revive_or_bury(self, *, discards: bool) -> bool | None:
        """Return whether it has happened; ``None``: the outcome is unknown."""
        try:
            ids = [letter.id for letter in await self.db.dead_letters(limit=1000)]
            await (self.db.discard(ids) if discards else self.db.replay(ids))
        except Unavailable:
            return False
        except CommitUnknown:
            return None
        return True

    @invariant()
    def store_and_model_agree(self) -> None:
        if self.store.machine.lives:
            self.store.retry(self._compare, self.db)
            self.store.write_gathered()
            self.history.check(self.store.check())

    async def _compare(self) -> None:
        db, model = self.db, self.model
        assert [pair async for pair in db.scan()] == model.span(b"", None)
        inboxes = {key: inbox for key, inbox in model.inboxes.items() if inbox}
        told = {info.key: (info.messages, int(info.oldest)) for info in await db.inboxes()}
        assert told == {key: (len(inbox), inbox[0][0]) for key, inbox in inboxes.items()}
        for key, inbox in inboxes.items():
            found = [(int(each.sent_at), each.value) for each in await db.peek(key, 1000)]
            assert found == [(sent_at, value) for sent_at, _, value in inbox]
        letters = [letter.request for letter in await db.dead_letters(limit=1000)]
        assert Counter((each.key, each.by) for each in letters) == Counter(model.dead)
        sums = {key: (await db.accounting(key)).get("n", 0) for key in (b"x", b"x/y", b"x/z")}
        assert sums == {key: model.sums[key] for key in sums}

    def teardown(self) -> None:
        host = self.store.machine
        host.disk.at_write = None
        if host.serves():
            self.store.let_pass(0.01)
            host.close()
        elif host.node is not None:
            host.close()


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
