"""Clients that are many, ask for much, or do not read: nobody else is locked out."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)
from typing import Any

import msgspec
import pytest

from postroom import limits
from postroom.messaging.requests import (
    AwaitQuiet,
    CancelScheduled,
    CheckInbox,
    DiscardDeadLetters,
    EnqueueMessage,
    EnqueueUpdate,
    ListDeadLetters,
    ListInboxes,
    ListScheduled,
    Peek,
    ReapMessages,
    ReapQueue,
    ReplayDeadLetters,
)
from postroom.protocol import frames
from postroom.ranges.listing import ListRanges
from postroom.ranges.nodes import DescribeNode, NodeStatus
from postroom.ranges.requests import (
    Accounting,
    ConditionalPut,
    Delete,
    DeleteRange,
    Get,
    GetForUpdate,
    GetMany,
    Increment,
    Now,
    Protect,
    Put,
    ReadAccounting,
    ReleaseLocks,
    ReverseScan,
    Scan,
    ScanChanges,
    Unprotect,
)
from postroom.server.cluster.admission import NodeLimits
from tests.attacks.hostile import (
    Attacker,
    Target,
    has_descriptors,
    memory_below,
    open_descriptors,
)
from tests.sim.service_rules import SERVICES

MIB = 1024 * 1024


# --- answers that nobody reads


def test_a_frame_of_gets_is_answered_as_fast_as_its_client_reads(target: Target) -> None:
    target.store.db.put(b"k", bytes(MIB))
    attacker = Attacker(target, b"attacker")
    with memory_below(16 * MIB):
        attacker.ask(*[Get(b"k")] * 4000)
        for _ in range(100):
            target.turn()
        assert attacker.session.unread_bytes <= 6 * MIB
        assert not attacker.session.reading
    other = Attacker(target, b"other")
    assert len(other.result(Get(b"k"))[0]) == MIB
    for _ in range(50):
        attacker.read()
        target.turn()
    assert len(attacker.answers) + len(attacker.failures) == 4000, "who reads is answered"
    target.check_alive()


def test_a_client_that_reads_nothing_for_long_is_cut_off(target: Target) -> None:
    target.store.db.put(b"k", bytes(MIB))
    attacker, idle = Attacker(target, b"attacker"), Attacker(target, b"idle")
    attacker.ask(*[Get(b"k")] * 100)
    target.store.clock.seconds += 9
    target.sessions.look()
    assert not attacker.session.ended
    idle.ask(Get(b"k"))
    target.sessions.look()
    assert not idle.session.ended, "there is something for it only since now"
    target.store.clock.seconds += 2
    target.sessions.look()
    assert attacker.session.ended
    assert not idle.session.ended
    attacker.read()
    assert attacker.goodbye is not None
    assert "no answer was read" in attacker.goodbye[1]
    target.check_alive()


def test_waits_that_are_answered_all_at_once_are_bounded_too(target: Target) -> None:
    attacker = Attacker(target, b"attacker")
    at = target.store.node.clock.reading()
    attacker.ask(*[ScanChanges(b"k", b"l", at)] * 1000)
    with memory_below(72 * MIB):
        for number in range(3):
            target.store.db.put(b"k%d" % number, bytes(MIB))
    assert attacker.session.ended
    assert attacker.session.unread_bytes < MIB
    attacker.read()
    assert attacker.goodbye is not None
    assert "were not read" in attacker.goodbye[1]
    target.check_alive()


def test_all_clients_together_leave_only_so_much_unread(target: Target) -> None:
    target.sessions.admission.limits = NodeLimits(unread_bytes_all=20 * MIB)
    target.store.db.put(b"k", bytes(MIB))
    attackers = [Attacker(target, b"a%d" % number) for number in range(20)]
    for attacker in attackers:
        attacker.ask(*[Get(b"k")] * 100)
        assert target.sessions.admission.unread_bytes <= 25 * MIB
    assert any(attacker.session.ended for attacker in attackers)
    target.check_alive()


# --- quotas and fair shares


def test_waiting_reaps_of_two_clients_lock_nobody_out(target: Target) -> None:
    attackers = [Attacker(target, b"a%d" % number) for number in range(2)]
    for attacker in attackers:
        for first in range(0, 12_000, 4000):
            attacker.ask(*(
                ReapQueue(b"%d" % n, 1, 1, attacker.transaction_id(n), 60.0, wait=True)
                for n in range(first, first + 4000)
            ))  # fmt: skip
            target.settle()
    admission = target.sessions.admission
    assert admission.requests >= admission.limits.requests_max
    others = [Attacker(target, b"o%d" % number) for number in range(20)]
    for other in others:
        other.result(other.commit(Put(other.session.client, b"v")))
        assert other.result(Get(other.session.client))[0] == b"v"
    attackers[0].read()
    assert attackers[0].failures == {} or "no more of this client" in str(attackers[0].failures)
    target.check_alive()


def test_twelve_hundred_streams_lock_nobody_out(target: Target) -> None:
    idle = [Attacker(target, b"i%d" % number) for number in range(1200)]
    assert sum(each.session.ended for each in idle) == 200, "they are no more entitled than others"
    elsewhere = Attacker(target, b"other", "ipv4:10.0.0.2:1")
    assert elsewhere.result(Get(b"k"))[0] is None, "another host has its share"
    target.store.clock.seconds += target.sessions.admission.limits.silent_seconds
    near = [Attacker(target, b"n%d" % number) for number in range(50)]
    for each in near:
        assert each.result(Get(b"k"))[0] is None, "the silent ones have made room"
    assert len(target.sessions) <= target.sessions.admission.limits.streams_max
    target.check_alive()


def test_streams_that_wait_make_room_for_another_host_but_not_those_that_work(
    target: Target,
) -> None:
    target.sessions.admission.limits = NodeLimits(streams_max=4)
    at = target.store.node.clock.reading()
    many = [Attacker(target, b"m%d" % number) for number in range(4)]
    many[0].ask(many[0].commit(Put(b"k", b"v")))
    for each in many[1:]:
        each.ask(ScanChanges(b"a", b"b", at))
    others = [Attacker(target, b"o%d" % n, "ipv4:10.0.0.2:1") for n in range(4)]
    assert [each.session.ended for each in many] == [False, True, True, False]
    assert [each.session.ended for each in others] == [False, False, True, True]
    many[1].read()
    assert many[1].goodbye is not None
    assert many[1].goodbye[0] == "Unavailable", "it may come back"
    target.check_alive()


def test_a_client_that_scans_much_waits_and_others_do_not(target: Target) -> None:
    target.fill(limits.TURN_STEPS_MAX)
    attacker, other = Attacker(target, b"attacker"), Attacker(target, b"other")
    last = attacker.ask(*[Scan(b"key/", b"key0", 0, 1, 1), *[Scan(b"none", None, 0, 1, 1)] * 4]
                        + [ScanChanges(b"", None, 1, wait=False)] * 300)  # fmt: skip
    for number in range(5):
        asked = other.ask(Get(b"key/%08d" % number))
        turns = target.turns
        target.until(lambda asked=asked: other.read() >= 0 and other.has(asked))  # type: ignore[misc]
        assert target.turns - turns <= 4
    assert not attacker.has(last)
    target.check_turns()
    target.check_alive()


def test_a_client_that_commits_much_waits_and_others_do_not(target: Target) -> None:
    attacker, other = Attacker(target, b"attacker"), Attacker(target, b"other")
    writes = [Put(b"a%d" % number, b"") for number in range(2000)]
    last = attacker.ask(*(attacker.commit(*writes) for _ in range(100)))
    asked = other.ask(other.commit(Put(b"other", b"v")))
    turns = target.turns
    target.until(lambda: other.read() >= 0 and other.has(asked))
    assert target.turns - turns <= 3
    attacker.read()
    assert not attacker.has(last)
    target.check_turns()
    target.settle()
    target.check_alive()


def test_one_client_protects_only_so_many_moments(target: Target) -> None:
    attacker = Attacker(target, b"attacker")
    now = attacker.result(Now())
    attacker.ask(*[Protect(now)] * 1500)
    target.until(lambda: attacker.read() >= 0 and attacker.session.reading)
    assert len(attacker.failures) == 500
    attacker.ask(*[Unprotect(now)] * 2000)
    target.until(lambda: attacker.read() >= 0 and attacker.session.reading)
    attacker.result(Protect(now))
    target.check_alive()


def test_one_client_leaves_room_for_others_to_protect(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.ranges.protections.PROTECTIONS_MAX", 100)
    now = Attacker(target, b"first").result(Now())
    protected = []
    for number in range(5):
        attacker = Attacker(target, b"a%d" % number)
        for each in range(100):  # timestamps count, however often they are protected
            attacker.ask(Protect(now - each - 1000 * number))
        target.until(lambda here=attacker: here.read() >= 0 and here.session.reading)
        protected.append(100 - len(attacker.failures))
    assert protected == [50, 25, 13, 6, 3]
    target.check_alive()


def whole(attacker: Attacker) -> int:
    """Take timestamps as a whole until one is refused; return how many were given."""
    asked: list[int] = []
    while not attacker.failures:
        attacker.target.store.advance(0.01)
        asked.append(attacker.ask(Protect(0, True, b"", "")))  # whatever it says of itself
        attacker.target.until(lambda: attacker.read() >= 0 and attacker.has(asked[-1]))
    ((_, said, _),) = attacker.failures.values()
    assert "nothing was protected" in said
    attacker.failures.clear()
    return len(asked) - 1


def test_one_client_leaves_room_for_others_to_protect_everything(target: Target) -> None:
    attacker = Attacker(target, b"attacker")
    assert whole(attacker) == 8
    others = [
        Attacker(target, b"other%d" % number, f"ipv4:10.0.1.{number}:1") for number in range(4)
    ]
    assert [whole(other) for other in others] == [4, 2, 1, 1]
    others[0].session.close()
    target.settle()
    assert whole(Attacker(target, b"late", "ipv4:10.0.2.1:1")) == 2
    assert target.store.node.replicas.sizes()["engine snapshots"] == 14
    target.check_alive()
    assert target.store.node.replicas.sizes()["engine snapshots"] == 0


def test_many_clients_of_a_host_share_its_bound_on_snapshots(target: Target) -> None:
    attackers = [Attacker(target, b"a%d" % number) for number in range(20)]
    assert sum(map(whole, attackers)) == 12
    assert whole(Attacker(target, b"other", "ipv4:10.0.0.2:1")) == 2
    target.check_alive()


def test_a_snapshot_kept_by_an_ally_counts_for_the_client_that_took_it(target: Target) -> None:
    attacker, ally = Attacker(target, b"attacker"), Attacker(target, b"ally")
    moments = []
    for _ in range(8):
        target.store.advance(0.01)
        moments.append(attacker.result(Protect(0, True)))
    ally.ask(*map(Protect, moments))
    attacker.ask(*map(Unprotect, moments))
    target.settle()
    assert whole(attacker) == 0
    assert whole(Attacker(target, b"other", "ipv4:10.0.0.2:1")) == 4
    target.check_alive()


# --- anything at all

_packed = msgspec.msgpack.encode


class Hostile:
    """A source of sound requests that mean harm: sizes, numbers, order, repetition."""

    def __init__(self, randomness: Random, attacker: Attacker) -> None:
        self.random = randomness
        self.attacker = attacker

    def key(self) -> bytes:
        choose = self.random.choice
        letters = choose([b"a", b"k", b"\x00", b"\xff", b"/"])
        return letters * choose([0, 1, 2, 30, 100, limits.KEY_BYTES_MAX])

    def number(self) -> int:
        return self.random.choice([0, 1, 2, 5, 1000, 1 << 31, 1 << 62])

    def moment(self) -> int:
        now = self.attacker.target.store.node.clock.reading()
        return self.random.choice([0, 1, now - (5 << 16), now, now + (60_000 << 16), (1 << 64) - 1])

    def delta(self) -> int:
        return self.random.choice([0, 1, -1, 2**63 - 1, -(2**63)])

    def span(self) -> tuple[bytes, bytes | None]:
        start, end = self.key(), self.random.choice([None, b"", self.key(), b"\xff"])
        return start, end

    def value(self) -> bytes:
        return bytes(self.random.choice([0, 1, 8, 500, 500, 500, 20_000, limits.VALUE_BYTES_MAX]))

    def headers(self) -> Any:
        nested: Any = self.random.choice([1, "x" * 60_000, b"b" * 70_000, {}])
        for _ in range(self.random.choice([0, 3, 15, 40])):
            nested = self.random.choice([[nested], {"k": nested}])
        return self.random.choice([None, {"h": nested}])

    def ids(self, size: int) -> list[bytes]:
        return [self.random.randbytes(size) for _ in range(self.random.choice([0, 1, 300]))]

    def update(self) -> Any:
        metrics = self.random.choice([0, 1, 64, 65, 2000])
        return self.random.choice([
            lambda: Put(self.key(), self.value()),
            lambda: Increment(self.key(), self.delta()),
            lambda: Delete(self.key()),
            lambda: DeleteRange(*self.span()),
            lambda: Accounting(self.key(), {f"m{n}": self.delta() for n in range(metrics)}),
        ])()  # fmt: skip

    def write(self) -> Any:
        return self.random.choice([
            self.update,
            lambda: ConditionalPut(self.key(), self.value(), self.random.choice([None, b""])),
            lambda: EnqueueMessage(self.key(), self.value(), self.headers(), self.moment()),
            lambda: EnqueueUpdate(self.update(), self.random.choice([0, 0, self.moment()])),
            lambda: ReapMessages(self.key(), self.ids(20)),
            lambda: ReplayDeadLetters(self.ids(28)),
            lambda: DiscardDeadLetters(self.ids(28)),
            lambda: CancelScheduled([id_ + b"\x01" for id_ in self.ids(36)]),
            lambda: CheckInbox(self.key(), self.random.choice([None, 0, 1]), tuple(self.ids(20))),
        ])()  # fmt: skip

    def commit(self) -> Any:
        write, number = self.write(), self.random.choice([0, 1, 1, 2, 50, 2000])
        writes = [write] * min(number, frames.FRAME_BYTES_MAX // len(_packed(write)))
        spans = [self.span()] * self.random.choice([0, 0, 1, 3000])
        reads = [self.key()] * self.random.choice([0, 0, 1, 3000])
        return self.attacker.commit(*writes, spans=spans, reads=reads, at=self.moment())

    def request(self) -> Any:
        number = self.random.randrange(5)
        foreign = self.random.random() < 0.1
        transaction = b"%016d" % number if foreign else self.attacker.transaction_id(number)
        return self.random.choice([
            self.commit, self.commit, self.commit,
            lambda: Get(self.key(), self.moment()),
            lambda: GetMany([self.key()] * self.random.choice([0, 5, 20_000]), self.moment()),
            lambda: GetForUpdate(self.key(), self.moment(), transaction, 1e9),
            lambda: Scan(*self.span(), self.moment(), self.number(), self.number()),
            lambda: ReverseScan(*self.span(), self.moment(), self.number(), self.number()),
            lambda: ScanChanges(*self.span(), self.moment(), self.random.random() < 0.5),
            Now, AwaitQuiet, DescribeNode, lambda: ListRanges(*self.span()),
            lambda: ReadAccounting(self.key()),
            lambda: Protect(self.moment()),
            lambda: Unprotect(self.moment()),
            lambda: ReleaseLocks(transaction),
            lambda: ReapQueue(self.key(), self.number(), self.number(), transaction, 1e9,
                              self.random.random() < 0.5),
            lambda: Peek(self.key(), self.number(), self.moment(), self.number(),
                         self.random.choice([None, b"\xff" * 20])),
            lambda: ListInboxes(*self.span(), self.number()),
            lambda: ListScheduled(*self.span(), self.number(), self.number()),
            lambda: ListDeadLetters(self.number(), self.number(), self.random.randbytes(3)),
        ])()  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_the_store_goes_on_after_random_requests_of_authorised_clients(
    target: Target, seed: int
) -> None:
    """Repeat one with ``pytest tests/attacks -k 'goes_on and [SEED]'``."""
    randomness = Random(seed)
    descriptors = open_descriptors()
    target.fill(500)
    attackers = [Attacker(target, b"a%d" % n, f"ipv4:10.0.0.{n}:1") for n in range(4)]
    disk = target.store.engine.inner.disk  # type: ignore[attr-defined]
    with memory_below(400 * MIB, lambda: disk.content.bytes_stored):
        for round_ in range(60):
            number = randomness.randrange(len(attackers))
            attacker = attackers[number]
            if attacker.session.ended:
                name = b"a%d-%d" % (number, round_)
                attacker = attackers[number] = Attacker(target, name[:8], f"ipv4:10.0.0.{number}:1")
            hostile = Hostile(randomness, attacker)
            requests = [hostile.request()] * randomness.choice([1, 1, 1, 2, 40])
            requests += [hostile.request() for _ in range(randomness.randrange(4))]
            # Not encoded together: forty of the largest would take gigabytes, of the test's own.
            different = {id(each): each for each in requests}
            sizes = {id_: len(msgspec.msgpack.encode(each)) for id_, each in different.items()}
            if sum(sizes[id(each)] for each in requests) < frames.FRAME_BYTES_MAX - 1000:
                attacker.ask(*requests)
            if randomness.random() < 0.7:
                attacker.read()
            for _ in range(randomness.choice([0, 1, 5])):
                target.turn()
            if randomness.random() < 0.1:
                target.store.clock.seconds += randomness.choice([0.01, 1.0, 20.0])
                target.sessions.look()
        target.settle()
    target.check_turns()
    target.store.advance(70.0)
    target.check_alive()
    assert has_descriptors(descriptors)


def test_a_status_tells_of_services_that_fail(target: Target) -> None:
    attacker = Attacker(target, b"attacker")
    services = msgspec.convert(attacker.result(DescribeNode()), NodeStatus).services
    assert tuple(each.name for each in services) == SERVICES
    assert all(each.running and not each.failures for each in services)
