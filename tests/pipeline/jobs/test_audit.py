"""The job audit: it finds every kind of damage, by name, and none where there is none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import msgspec
import pytest

import postroom
from postroom.errors import LeaseLost, SnapshotTooOld
from postroom.kv import keys
from postroom.kv.storage import Storage
from postroom.messaging.counters import read_counters
from postroom.messaging.queues import records
from postroom.messaging.queues.definition_requests import QueueDefinition
from postroom.messaging.queues.event_groups import Outstanding
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.requests import InboxIndexEntry
from postroom.pipeline.jobs import audit
from postroom.pipeline.jobs.audit import COUNTERS, AuditResult, CountDifference
from postroom.pipeline.jobs.job import JobFailed
from postroom.ranges.requests import Accounting, Put
from postroom.ranges.state import APPLIED_RECORD, read_applied
from postroom.server.opening import open_storage
from tests.client.test_recount import fill

auditing = import_module("postroom.pipeline.jobs.audit")
"""The module, whose name in its package is the function."""
RANGE = 1
encode = msgspec.msgpack.encode


def told(result: AuditResult) -> set[tuple[str, str, bytes, str, Any, Any]]:
    """Return all differences, each of which is among the examples."""
    examples = [each for finding in result.findings for each in finding.examples]
    assert len(examples) == result.differences
    return {
        (each.counter, each.where, each.key, each.item, each.claimed, each.counted)
        for each in examples
    }


class Damage:
    """A damage: it writes beneath a store that nobody has open."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.numbers = {
            definition.name: definition.number
            for _, packed in self.span(keys.queue_definitions_prefix(RANGE))
            for definition in [msgspec.msgpack.decode(packed, type=QueueDefinition)]
        }

    def span(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        return list(self.storage.iterate(prefix, keys.after_prefix(prefix)))

    def put(self, key: bytes, value: Any) -> None:
        packed = value if value is None or type(value) is bytes else encode(value)
        self.storage.write({key: packed}, sync=True)

    def change(self, key: bytes, kind: type, **added: int) -> None:
        stored = self.storage.get(key)
        assert stored is not None
        value = msgspec.msgpack.decode(stored, type=kind)
        more = {name: getattr(value, name) + number for name, number in added.items()}
        self.put(key, msgspec.structs.replace(value, **more))

    def change_counters(self, range_id: int = RANGE, **added: int) -> None:
        applied = read_applied(self.storage, range_id)
        counters = read_counters(self.storage, range_id)
        more = {name: getattr(counters, name) + number for name, number in added.items()}
        sums = encode(msgspec.structs.replace(counters, **more))
        changed = msgspec.structs.replace(applied, sums=sums)
        self.put(keys.record_key(range_id, APPLIED_RECORD), changed)

    def layout(self, queue: str) -> records.QueueLayout:
        return records.QueueLayout(RANGE, self.numbers[queue])


@contextmanager
def damage(folder: Path) -> Iterator[Damage]:
    storage = open_storage(folder, Random(1), create=False)
    yield Damage(storage)
    storage.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with postroom.open(tmp_path / "shop") as db:
        fill(db)
        for name in ("lost", "twice", "bare", "ended", "grouped"):
            db.create_queue(name)
            with db.begin() as tx:
                tx.enqueue(name, b"", id=b"m1", kind="k", group="g" if name == "grouped" else "")
                tx.enqueue(name, b"", id=b"m2")
            db.queue(name).acknowledge([b"m2"])
        with db.begin() as tx:
            tx.enqueue_update(Accounting(b"b/c/d", {"n": 5, "m": 1}))
            tx.enqueue_update(Accounting(b"b/c", {"n": 1}))
            for number in range(3):
                tx.enqueue_message(b"missing", b"%d" % number)
                tx.enqueue_message(b"first", b"%d" % number)
    return tmp_path / "shop"


def test_every_kind_of_damage_is_named(spark: Any, folder: Path) -> None:
    with damage(folder) as beneath:
        expected = set[tuple[str, str, bytes, str, Any, Any]]()
        _damage_range(beneath, expected)
        _damage_inboxes(beneath, expected)
        _damage_sums(beneath, expected)
        _damage_queues(beneath, expected)
    result = audit(spark, {"path": str(folder)})
    found = told(result)
    assert found - expected == set()
    assert expected - found == set()
    assert {each[0] for each in found} == set(COUNTERS) - {
        "queue.scheduled", "queue.leased", "queue.archived", "queue.slots", "in_transit.message"
    }  # fmt: skip


Expected = set[tuple[str, str, bytes, str, Any, Any]]


def _damage_range(beneath: Damage, expected: Expected) -> None:
    beneath.change_counters(enqueued=1, reaped=1, discarded=-1, received=1, executed=1)
    counters = read_counters(beneath.storage, RANGE)
    there = counters.delivered - counters.reaped
    expected |= {
        ("conservation", "range 1", b"", "", counters.enqueued + 1, counters.enqueued),
        ("in_transit", "all ranges", b"", "", 1, 0),
        ("messages_in_inboxes", "all ranges", b"", "", there, there + 1),
        ("dead_letters", "range 1", b"", "", 2, 1),
    }
    (update,) = beneath.span(keys.outbox_prefix(RANGE, keys.EXECUTABLE, keys.WAITING))
    beneath.put(update[0], None)
    expected.add(("pending_updates", "range 1", b"", "", 1, 0))
    message = beneath.span(keys.outbox_prefix(RANGE, keys.DELIVERABLE, keys.WAITING))[0]
    beneath.put(message[0][:-1] + b"\xff", message[1])
    expected.add(("pending_messages", "range 1", b"", "", 2, 3))


def _damage_inboxes(beneath: Damage, expected: Expected) -> None:
    beneath.put(keys.mail_key(b"missing"), None)
    beneath.put(keys.mail_key(b"too many"), InboxIndexEntry(2, b"\x01" * 20))
    beneath.put(keys.mail_key(b"of nothing"), InboxIndexEntry(0, b""))
    first, second, _ = (key[-20:] for key, _ in beneath.span(keys.inbox_prefix(b"first")))
    beneath.put(keys.mail_key(b"first"), InboxIndexEntry(3, second))
    held = msgspec.msgpack.decode(
        beneath.storage.get(keys.mail_key(b"inbox/0")) or b"", type=InboxIndexEntry
    )
    beneath.put(keys.mail_key(b"inbox/0"), InboxIndexEntry(held.messages, held.oldest))
    beneath.put(keys.hold_up_span(b"first").lower + second, b"x")
    expected |= {
        ("inbox_index.messages", "", b"missing", "", 0, 3),
        ("inbox_index.messages", "", b"too many", "", 2, 0),
        ("inbox_index.oldest", "", b"of nothing", "", "", None),
        ("inbox_index.oldest", "", b"first", "", second.hex(), first.hex()),
        ("inbox_index.held", "", b"inbox/0", "", None, held.held.hex()),
        ("inbox_index.held", "", b"first", "", None, second.hex()),
    }


def _damage_sums(beneath: Damage, expected: Expected) -> None:
    beneath.put(keys.accounting_key(b"b"), {"n": 7, "m": 1})
    beneath.put(keys.accounting_key(b"b/c/d"), {"n": 5})
    beneath.put(keys.accounting_key(b"b/x"), {"n": 1})
    expected |= {
        ("accounting", "", b"b", "n", 7, 6),
        ("accounting", "", b"b/c/d", "m", 0, 1),
        ("accounting", "", b"b/x", "n", 1, 0),
    }


def _damage_queues(beneath: Damage, expected: Expected) -> None:
    jobs = beneath.layout("jobs").counters
    beneath.change(jobs, QueueCounts, enqueued=1, purged=1, done=1)
    counted = msgspec.msgpack.decode(beneath.storage.get(jobs) or b"", type=QueueCounts)
    expected |= {
        ("queue.enqueued", "queue 'jobs'", b"", "", counted.enqueued, counted.enqueued - 1),
        ("queue.ended", "queue 'jobs'", b"", "", 1, 2),
        ("queue.done", "queue 'jobs'", b"", "", 2, 1),
    }
    one = (b"m1", "kind 'k', id b'm1'")
    lost, twice, bare = (beneath.layout(name) for name in ("lost", "twice", "bare"))
    ((key, _),) = beneath.span(lost.ready)
    beneath.put(key, None)
    expected |= {
        ("queue.ready", "queue 'lost'", b"", "", 1, 0),
        ("queue.message", "queue 'lost'", *one, "live", None),
    }
    ((_, packed),) = beneath.span(twice.ready)
    beneath.put(twice.dead_key(5, b"\x01" * 12), packed)
    expected |= {
        ("queue.dead", "queue 'twice'", b"", "", 0, 1),
        ("queue.message", "queue 'twice'", *one, "live", "in 2 places"),
    }
    beneath.put(bare.body_key(b"m1", "k", b"m1"), None)
    expected.add(("queue.message", "queue 'bare'", *one, None, "live"))
    ended = beneath.layout("ended")
    key = ended.state_key(b"m2", "", b"m2")
    state = msgspec.msgpack.decode(beneath.storage.get(key) or b"", type=records.MessageState)
    beneath.put(key, msgspec.structs.replace(state, status=records.ARCHIVED))
    expected.add(("queue.message", "queue 'ended'", b"m2", "id b'm2'", "archived", "done"))
    beneath.put(beneath.layout("grouped").group_key("g"), Outstanding(3))
    expected.add(("queue.group", "queue 'grouped'", b"g", "", 3, 1))


def test_many_differences_are_counted_and_few_are_told(spark: Any, tmp_path: Path) -> None:
    with postroom.open(tmp_path / "shop"):
        pass
    with damage(tmp_path / "shop") as beneath:
        for number in range(25):
            beneath.put(keys.mail_key(b"k%02d" % number), InboxIndexEntry(1, b"\x01" * 20))
    steps: list[tuple[str, int, int | None]] = []
    result = audit(
        spark, {"path": str(tmp_path / "shop")}, progress=lambda *step: steps.append(step)
    )
    (finding,) = (each for each in result.findings if each.differences)
    assert (finding.counter, finding.compared, finding.differences) == (
        "inbox_index.messages", 25, 25
    )  # fmt: skip
    assert [each.key for each in finding.examples] == [b"k%02d" % number for number in range(10)]
    assert {stage for stage, _, _ in steps} == {"recounting", "looking for examples"}


class Load:
    """Transactions of every kind, one after the other, until it is told to stop."""

    def __init__(self, address: str) -> None:
        self.done = 0
        self._address = address
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(each,)) for each in range(2)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _work(self, seed: int) -> None:
        random = Random(seed)
        with postroom.connect(self._address, insecure=True) as db:
            consumer = db.queue("q").claim
            while not self._over.is_set():
                db.run(lambda tx: _send(tx, random))
                db.run(lambda tx: _receive(tx, random))
                for message in consumer(3):
                    with suppress(LeaseLost):
                        random.choice([message.acknowledge, message.reject, lambda: None])()
                self.done += 1


def _send(tx: postroom.Transaction, random: Random) -> None:
    number = random.randrange(20)
    tx.put(b"k%d" % number, b"")
    tx.enqueue_message(b"inbox/%d" % (number % 4), b"", deliver_at=random.choice([None, 0.2]))
    tx.enqueue("q", b"", id=b"%d" % number, group=f"g{number % 3}", deliver_at=number % 2)
    tx.enqueue_update(Accounting(b"a/%d/%d" % (number % 3, number), {"n": number}))
    tx.enqueue_update(Put(b"u", b""), execute_at=random.choice([None, 0.1]))


def _receive(tx: postroom.Transaction, random: Random) -> None:
    found = tx.reap_queue(b"inbox/%d" % random.randrange(4), 3)
    if found and random.random() < 0.5:
        tx.postpone(found[:1], delay=0.1, hold=random.random() < 0.5)
    elif found and random.random() < 0.2:
        tx.bury(found[:1], "no")


def test_an_audit_of_a_sound_store_under_load_finds_no_difference(
    spark: Any, served: str, db: postroom.Database
) -> None:
    fill(db)
    db.create_queue("q", ack_wait=0.3, max_attempts=2, on_duplicate="replace", purge_after=0)
    store = {"connect": served, "insecure": "true"}
    with Load(served) as load:
        for _ in range(2):
            before = load.done
            result = audit(spark, store)
            assert load.done > before
            assert told(result) == set()
    compared = {each.counter: each.compared for each in result.findings}
    for name in ("queue.slots", "in_transit.message"):
        assert not compared.pop(name), "one range has all"
    assert all(compared.values()), compared


# --- without Spark --------------------------------------------------------------------------------


def test_a_difference_says_where_it_is_and_what_is_claimed() -> None:
    difference = CountDifference("accounting", "", b"a/b", "n", 2, 1)
    assert str(difference) == "accounting ('a/b', n): claimed 2, counted 1"
    total = CountDifference("conservation", "all ranges", b"", "", 2, 1)
    assert str(total) == "conservation (all ranges): claimed 2, counted 1"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Return a maker of audits whose recounts end as a script says.

    Their store holds what it is told to.
    """

    def script(*ends: Exception | str, held: bool) -> list[int]:
        tries: list[int] = []

        class Held:
            @contextmanager
            def hold(self, *, whole: bool) -> Iterator[int]:
                assert whole
                tries.append(len(tries))
                yield len(tries)

            @property
            def bulk(self) -> Held:
                return self

            def scan(self, table: str, at: int) -> Iterator[str]:
                if not held:
                    raise SnapshotTooOld("gone")
                yield table

        @contextmanager
        def database(*_: object) -> Iterator[Held]:
            yield Held()

        def recount(*_: object) -> str:
            end = ends[len(tries) - 1]
            if isinstance(end, Exception):
                raise end
            return end

        monkeypatch.setattr(auditing, "database", database)
        monkeypatch.setattr(auditing, "_audit", recount)
        return tries

    return script


def test_an_audit_counts_again_after_a_change_of_leader(
    scripted: Callable[..., list[int]],
) -> None:
    tries = scripted(RuntimeError("gone"), "counted", held=False)
    assert audit(None, {}) == "counted"  # type: ignore[arg-type,comparison-overlap]
    assert len(tries) == 2


def test_an_audit_gives_up_when_the_leader_changes_all_the_time(
    scripted: Callable[..., list[int]],
) -> None:
    tries = scripted(*[RuntimeError("gone")] * 3, held=False)
    with pytest.raises(JobFailed, match="leader during each of 3 audits"):
        audit(None, {})  # type: ignore[arg-type]
    assert len(tries) == 3


def test_an_audit_that_fails_for_another_reason_ends_at_once(
    scripted: Callable[..., list[int]],
) -> None:
    tries = scripted(RuntimeError("no memory\nat line 1"), held=True)
    with pytest.raises(JobFailed, match=r"no memory\); nothing was changed"):
        audit(None, {})  # type: ignore[arg-type]
    assert len(tries) == 1
