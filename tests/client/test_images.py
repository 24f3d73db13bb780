"""Images: all of a store, read at one timestamp, is all of another one, which goes on like it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

import postroom
from postroom import limits
from postroom.client.commits import repeat_one
from postroom.client.staging import packed
from postroom.client.sync_parts import Restore
from postroom.errors import (
    ConditionFailed,
    Invalid,
    SnapshotTooOld,
    Unavailable,
)
from postroom.kv import keys
from postroom.messaging import image_entries as entries
from postroom.messaging import images as scanning
from postroom.messaging.ingest.machine import Ingest, IngestState, LoadedSpan, encode
from postroom.messaging.ingest.requests import BeginRestore, StageRows
from postroom.ranges.requests import Put
from tests.client.images import IMAGE, Workload, read, restore, seen, shown
from tests.client.stores import Store

RUN, OTHER = b"1" * 16, b"2" * 16
QUEUES = list(Workload.QUEUES)


def filled(seed: int, steps: int = 40, **options: Any) -> Store:
    """Return a store in which a little of everything has happened."""
    store = Store(**options)
    work = Workload(store.db, seed)
    for step in range(steps):
        work.step()
        store.advance(1.0 if step % 7 else 6.0)
    return store


def empty_like(store: Store, **options: Any) -> Store:
    """Return an empty store whose clock shows the time of ``store``."""
    other = Store(**options)
    other.advance(store.clock.seconds)
    return other


@pytest.mark.parametrize("seed", [0, 1, 2, 4])
def test_a_restored_store_equals_its_original_and_goes_on_like_it(seed: int) -> None:
    store = filled(seed)
    at, found = read(store.db)
    other = empty_like(store)
    restore(other.db, at, found, chunk=7)
    assert shown(other) == shown(store)
    assert seen(other.db, QUEUES) == seen(store.db, QUEUES)
    assert other.counters() == store.counters()
    for each in (store, other):  # chance, which moves back-offs a little, must not matter
        each.advance(3700)
        each.db.drain()
    after = [_without_times(seen(each.db, QUEUES)) for each in (store, other)]
    assert after[0] == after[1]
    fired = [
        sorted(
            ((m.id, m.kind, m.epoch, m.payload) for m in each.db.queue(name).claim(100)), key=repr
        )
        for name in QUEUES
        for each in (store, other)
    ]
    assert fired[0::2] == fired[1::2]
    assert other.counters() == store.counters()


def _without_times(found: dict[str, Any]) -> dict[str, Any]:
    """Leave timestamps out, since those of what has happened since are other ones."""
    for key, messages in found["messages"]:
        found[f"inbox {key!r}"] = [(*each[:4], *each[5:]) for each in messages]
    del found["messages"]
    for name in QUEUES:
        for state in ("scheduled", "ready", "leased", "done", "archived", "dead"):
            table = found[f"{name} {state}"]
            found[f"{name} {state}"] = sorted(
                ((each[0], each[1], each[3], each[10], each[13]) for each in table), key=repr
            )
    return found


def test_an_image_shows_one_moment_without_later_writes() -> None:
    store = filled(1)
    before = shown(store)
    with store.db.hold(whole=True) as at:
        pages = store.db.bulk.scan("image", at=at)
        store.db.put(b"later", b"1")
        with store.db.begin() as tx:
            tx.enqueue_message(b"a", b"later")
        found = b"".join(each.data for page in pages for each in page.columns.values())
    assert b"later" not in found
    with pytest.raises(SnapshotTooOld):
        list(store.db.bulk.scan("image", at=at))
    assert shown(store) != before


def test_pages_are_small_whatever_lies_between(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    for number in range(50):
        store.db.put(b"a", b"%d" % number)
    store.db.put(b"b", b"1")
    with store.db.begin() as tx:
        for _ in range(20):
            tx.enqueue_message(b"b", b"x")
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 8)
    _, found = read(store.db)
    assert [name[:1] for name, _ in found].count(keys.DATA) == 22
    walked = list(scanning.walk(store.engine, keys.data_span(b"a", b"a\x00")))
    assert len(walked) < 10, "older versions are leapt over"


def test_a_restored_store_starts_after_what_was_restored() -> None:
    store = filled(2)
    at, found = read(store.db)
    other = Store()  # its clock is behind
    assert other.db.now() < at
    restore(other.db, at, found)
    assert other.db.now() > at
    assert list(other.db.scan(at=at)) == list(store.db.scan(at=at))
    with pytest.raises(SnapshotTooOld):
        other.db.get(b"a", at=at - 1)
    with other.db.begin() as tx:
        tx.enqueue_message(b"a", b"new")
    messages = list(other.db.peek(b"a", 1000))
    assert len({each.id for each in messages}) == len(messages)
    assert messages[-1].value == b"new"
    other.restart()
    assert other.db.now() > at


def test_staged_rows_can_be_published_in_a_restored_store() -> None:
    store = Store()
    job, attempt, rows = bytes(24), bytes(16), [Put(b"%02d" % n, b"x") for n in range(20)]
    for batch in (0, 1):
        write = StageRows(b"query", batch, job, b"", attempt, 0, packed(rows))
        store.db.sender.run(repeat_one(store.db.sender, write))
        if not batch:
            store.db.staging.publish(b"query", batch, job, [(attempt, 1)])
            job = b"2" * 24
    at, found = read(store.db)
    other = empty_like(store)
    restore(other.db, at, found)
    assert other.db.staging.read() == store.db.staging.read()
    other.db.delete_range(b"", None)
    assert not other.db.staging.publish(b"query", 0, bytes(24), [(attempt, 1)])
    assert not list(other.db.scan())
    assert other.db.staging.publish(b"query", 1, job, [(attempt, 1)])
    assert len(list(other.db.scan())) == 20


@pytest.mark.parametrize("alone", [False, True])
def test_a_lease_has_failed_in_a_restored_store_as_after_a_restart(alone: bool) -> None:
    """One that is alone knows that the consumer has gone: its message is fired again at once."""
    why = "the consumer has gone" if alone else "it was not acknowledged in time"
    store = Store()
    queue = store.db.create_queue("q", max_attempts=5)
    with store.db.begin() as tx:
        tx.enqueue("q", b"work", id="one")
    assert len(queue.claim(1)) == 1
    at, found = read(store.db)
    other = empty_like(store, rests_alone=alone)
    restore(other.db, at, found)
    if not alone:
        assert not other.db.queue("q").claim(1)
        other.advance(120)
    (again,) = other.db.queue("q").claim(1)
    assert (again.id, again.epoch, again.last_error) == ("one", 1, why)


def test_a_store_that_is_being_restored_serves_no_client() -> None:
    store = filled(3)
    at, found = read(store.db)
    other = empty_like(store)
    waiting = other.start(other.core.scan_pages(b"", None).__anext__())
    del waiting
    begun = other.db.images.begin(RUN, IMAGE, at)
    assert begun is not None
    for name, stored in found:
        send(begun, [name], [stored])
    for attempt in (
        lambda: other.db.get(b"a"),
        lambda: other.db.put(b"a", b"1"),
        lambda: other.db.peek(b"a"),
        lambda: other.db.create_queue("x"),
        lambda: other.db.queue("mail").claim(1),
        lambda: list(other.db.scan()),
    ):
        with pytest.raises(Unavailable, match="being restored"):
            attempt()
    other.advance(60)
    other.restart()
    other.advance(60)  # no service does anything
    with pytest.raises(Unavailable, match="being restored"):
        other.db.get(b"a")
    assert {k: v for k, v in shown(other).items() if k in shown(store)} == shown(store)
    begun = other.db.images.begin(RUN, IMAGE, at)
    assert begun is not None
    begun.end_part(0, len(found))
    begun.end(1, len(found))
    assert list(other.db.scan()) == list(store.db.scan())


def test_a_waiting_client_is_answered_when_the_restored_store_opens() -> None:
    store = Store()
    with store.db.begin() as tx:
        tx.enqueue_message(b"a", b"hello")
    at, found = read(store.db)
    other = empty_like(store)

    async def reap() -> bytes:
        async with other.core.begin() as tx:
            reaped = await tx.reap_queue(b"a", 1, wait=1000)
            return bytes(reaped[0].value)

    reaping = other.start(reap())
    restore(other.db, at, found)
    assert reaping.result() == b"hello"


def test_a_restore_that_was_killed_goes_on_and_a_late_run_is_refused() -> None:
    store = filled(4)
    at, found = read(store.db)
    other = empty_like(store)
    first = other.db.images.begin(RUN, IMAGE, at)
    assert first is not None
    half = found[: len(found) // 2]
    first.send([name for name, _ in half], [stored for _, stored in half])
    first.flush()
    other.kill()
    second = other.db.images.begin(OTHER, IMAGE, at)
    assert second is not None
    with pytest.raises(Invalid, match="late"):
        first.end_part(0, len(half))
    second.send([name for name, _ in found], [stored for _, stored in found])
    second.end_part(0, len(found))
    other.kill()
    third = other.db.images.begin(RUN, IMAGE, at)
    assert third is not None
    assert other.db.images.read().parts == {0: len(found)}
    with pytest.raises(Invalid, match="not 1 with"):
        third.end(1, len(found) + 1)
    third.end(1, len(found))
    third.end(1, len(found))
    assert shown(other) == shown(store)
    assert other.db.images.begin(OTHER, IMAGE, at) is None
    with pytest.raises(Invalid, match="another export"):
        other.db.images.begin(OTHER, b"another", at)


@pytest.mark.parametrize("killed", [False, True])
def test_an_abandoned_restore_leaves_an_empty_store(
    monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    monkeypatch.setattr(limits, "RESTORE_REMOVED_AT_ONCE_MAX", 5)
    store = filled(5)
    at, found = read(store.db)
    other = empty_like(store)
    begun = other.db.images.begin(RUN, IMAGE, at)
    assert begun is not None
    begun.send([name for name, _ in found], [stored for _, stored in found])
    begun.end_part(0, len(found))
    if killed:
        other.kill()
    other.db.images.abandon()
    assert not shown(other)
    with pytest.raises(Invalid, match="nothing is being restored"):
        other.db.images.abandon()
    with pytest.raises(Invalid, match="late"):
        begun.end(1, len(found))
    other.db.put(b"a", b"1")
    assert other.db.get(b"a") == b"1"
    third = empty_like(store)
    restore(third.db, at, found)
    assert shown(third) == shown(store)


def test_only_an_empty_store_is_restored_into() -> None:
    store = filled(6, steps=5)
    at, found = read(store.db)
    with pytest.raises(Invalid, match="not empty"):
        store.db.images.begin(RUN, IMAGE, at)
    store.db.put(b"a", b"1")
    other = empty_like(store)
    other.db.put(b"a", b"1")
    other.db.delete(b"a")
    with pytest.raises(Invalid, match="not empty"):
        other.db.images.begin(RUN, IMAGE, at)
    assert other.db.get(b"a") is None
    del found


def test_a_restore_notices_a_write_of_the_same_proposal() -> None:
    other = Store()
    opening = other.driver.send(BeginRestore(RUN, IMAGE, 1))
    put = other.start(other.core.put(b"a", b"1"))  # evaluated into the same proposal
    with pytest.raises(Invalid, match="it is open again"):
        other.db.images.begin(RUN, IMAGE, 1)
    del opening, put
    assert other.db.get(b"a") == b"1"


def test_the_counters_and_indexes_are_compared() -> None:
    store = filled(7)
    at, found = read(store.db)
    found = [
        (name, stored) for name, stored in found
        if name[:1] != keys.MAIL and name[:2] != keys.RANGE + keys.DELIVERABLE
    ]  # fmt: skip
    other = empty_like(store)
    begun = other.db.images.begin(RUN, IMAGE, at)
    assert begun is not None
    send(begun, [name for name, _ in found], [stored for _, stored in found])
    wrong = other.db.images.check().wrong
    assert any("in the inbox of" in each for each in wrong)
    assert any("messages in the outbox" in each for each in wrong)


def send(begun: Restore, names: list[bytes], stored: list[bytes]) -> None:
    """Send a chunk, and wait for its outcome."""
    begun.send(names, stored)
    begun.flush()


_LOAD = encode(Ingest(IngestState.OPEN, LoadedSpan(b"", None), bytes(16)))


def _head(at: int, value: bytes = b"1", kind: bytes = b"\x01") -> bytes:
    return kind + keys.u64(at) + value


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        (b"", b"1"),
        (b"\x01identity", b"1"),
        (b"\x02" + bytes(20), b"1"),
        (keys.RANGE + keys.RECORD + b"lease", b"1"),
        (keys.RANGE + keys.RECORD + b"applied", b"1"),
        (keys.RANGE + keys.RECORD + b"messages", msgspec.msgpack.encode([1, 0, 0])),
        (keys.RANGE + keys.RECORD + b"queue 1", msgspec.msgpack.encode([-1])),
        (keys.RANGE + keys.RECORD + b"queue " + b"1" * 5000, msgspec.msgpack.encode([0] * 20)),
        (keys.RANGE + keys.GARBAGE + bytes(8), b"\x90"),
        (keys.RANGE + keys.DELIVERABLE + keys.WAITING + bytes(28), b"\x90"),
        (keys.RANGE + keys.DELIVERABLE + keys.WAITING + bytes(3), b"\x90"),
        (keys.RANGE + keys.DELIVERABLE + b"\x02" + bytes(28), b"\x95\xa1k\xa1v\xc0\xa0\xa0"),
        (keys.RANGE + keys.QUEUES + bytes(4) + b"q", b"\x93\x01\x02\x03"),
        (keys.RANGE + keys.STAGING + keys.RESTORED_PART + bytes(4), b"\x01"),
        (keys.RANGE + keys.STAGING + keys.STAGED_LOAD + bytes(513), _LOAD),
        (keys.staged_prefix(keys.STAGED_CHUNK, b"q") + bytes(43), b"\x90"),
        (keys.staged_prefix(keys.STAGED_CHUNK, b"q" * 513) + bytes(44), b"\x90"),
        (keys.staged_prefix(keys.STAGED_QUERY, b"q"), b"\x90"),
        (keys.head_key(b"a"), b""),
        (keys.head_key(b"a"), _head(1 << 60)),
        (keys.head_key(b"a"), _head(1, kind=b"\x02")),
        (keys.head_key(b"a"), _head(1, kind=b"\x03")),
        (keys.head_key(b"a"), _head(1, kind=b"\x04")),
        (keys.head_key(b"a"), _head(1, bytes(limits.VALUE_BYTES_MAX + 1))),
        (keys.head_key(b"a" * (limits.KEY_BYTES_MAX + 1)), _head(1)),
        (keys.head_key(b"a") + b"\x00", _head(1)),
        (keys.DATA + b"a\x00b\x00\x01\x01", _head(1)),
        (keys.DATA + b"a", _head(1)),
        (keys.inbox_prefix(b"a") + bytes(20), b"\x91" * 2000),
        (keys.inbox_prefix(b"a") + bytes(19), msgspec.msgpack.encode([1, b"", None])),
        (keys.inbox_prefix(b"a") + b"\xff" * 20, msgspec.msgpack.encode([1, b"", None])),
        (keys.mail_key(b"a"), b"\xc1"),
        (keys.accounting_key(b"a"), msgspec.msgpack.encode({str(n): n for n in range(2000)})),
        (keys.history_key(keys.head_key(b"a"), bytes(8)), _head(1)),
    ],
)
def test_an_impossible_entry_of_an_image_is_refused(name: bytes, stored: bytes) -> None:
    other = Store()
    begun = other.db.images.begin(RUN, IMAGE, other.db.now())
    assert begun is not None
    before = other.dump()
    with pytest.raises(Invalid):
        send(begun, [name], [stored])
    assert other.dump().keys() == before.keys()


def test_each_kind_of_record_is_in_an_image_or_left_out_on_purpose() -> None:
    suffixes = {
        getattr(keys, name)
        for name in (
            "HEAD", "HISTORY", "INBOX", "REAPED", "ACCOUNTING", "QUEUE_BODY", "QUEUE_STATE",
            "QUEUE_POINTER", "HOLD_UP", "POSTED",
        )
    }  # fmt: skip
    drawn = re.findall(r" 06 <\w+> ([0-9A-F]{2}) ", keys.__doc__ or "")
    assert suffixes == {bytes.fromhex(each) for each in drawn}, "there is something new"
    left_out = {
        each for each in suffixes
        if entries.table_of(keys.DATA + keys.escape(b"a") + each) is None
    }  # fmt: skip
    assert left_out == {keys.HISTORY, keys.REAPED}
    drawn = re.findall(r" 03 range ([0-9A-F]{2}) ", keys.__doc__ or "")
    left_out = {
        each for each in drawn
        if entries.table_of(keys.RANGE + bytes.fromhex(each) + keys.STAGED_LOAD) is None
    }  # fmt: skip
    of_several_ranges = {"06", "07", "0A", "0B"}  # an image is one of a store of one range
    drawn = re.findall(r" 07 ([0-9A-F]{2}) ", keys.__doc__ or "")
    assert tuple(map(bytes.fromhex, drawn)) == keys.STAGED_SUBSPACES
    assert {entries.table_of(keys.staged_prefix(each, b"q")) for each in keys.STAGED_SUBSPACES} == {
        "staging"
    }
    trail = "0C"  # it leads from one image to the next
    assert left_out == {"04", "05", trail, *of_several_ranges}, "only counters are in an image"


def test_chunks_are_bounded_rising_and_of_one_value() -> None:
    other = Store()
    at = other.db.now()
    begun = other.db.images.begin(RUN, IMAGE, at)
    assert begun is not None
    one, two = keys.head_key(b"a"), keys.head_key(b"b")
    for names, stored in (([], []), ([one], []), ([two, one], [_head(1)] * 2)):
        with pytest.raises(Invalid):
            send(begun, names, stored)
    large = [keys.head_key(b"%03d" % n) for n in range(20)]
    with pytest.raises(postroom.TransactionTooLarge):
        send(begun, large, [_head(1, bytes(limits.VALUE_BYTES_MAX))] * 20)
    begun.send([one, two], [_head(1), _head(1)])
    send(begun, [one, two], [_head(1), _head(1)])
    with pytest.raises(ConditionFailed, match="another value"):
        send(begun, [one], [_head(1, b"2")])


def test_an_image_of_the_far_future_is_refused() -> None:
    other = Store()
    for at in (other.db.now() + (48 * 3_600_000 << 16), (1 << 63) - 1):
        with pytest.raises(Invalid, match="set the clock"):
            other.db.images.begin(RUN, IMAGE, at)
    other.db.put(b"a", b"1")
