"""Checkers of a disk find each fault that is planted: an entry lost, doubled or misplaced.

The disk is a real one: of a store that has versions, deletions, messages in inboxes, on their way
and reaped, deferred updates, dead letters, garbage and a queue.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest

from postroom.kv import keys, versions
from postroom.kv.memory import SortedMap
from postroom.messaging.requests import Delivered, InboxIndexEntry
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.requests import Increment
from postroom.ranges.state import APPLIED_RECORD
from tests.sim import checkers, disks
from tests.sim.checkers import Broken
from tests.sim.cluster.embedded import EmbeddedStore

_DELIVERABLE = keys.outbox_prefix(ROOT_ID, keys.DELIVERABLE, keys.WAITING)
_EXECUTABLE = keys.outbox_prefix(ROOT_ID, keys.EXECUTABLE, keys.WAITING)
_DEAD = keys.dead_letter_prefix(ROOT_ID)
_GARBAGE = keys.garbage_prefix(ROOT_ID)
_COUNTERS = keys.record_key(ROOT_ID, APPLIED_RECORD)
_CEILING = keys.store_key("clock ceiling")


def _write(tx: Any) -> None:
    for number in range(4):
        tx.put(b"key/%d" % number, b"first")
    for number in range(5):
        tx.enqueue_message(b"inbox", b"m%d" % number)
    tx.put(b"text", b"no number")
    for by in (1, 2):
        tx.enqueue_update(Increment(b"text", by))
    tx.enqueue_message(b"later", b"far", deliver_at=3600.0)
    tx.enqueue_message(b"later", b"farther", deliver_at=7200.0)
    tx.enqueue_update(Increment(b"count", 1), execute_at=3600.0)
    tx.enqueue_update(Increment(b"count", 1), execute_at=7200.0)


def _overwrite(tx: Any) -> None:
    tx.put(b"key/0", b"second")
    tx.delete(b"key/1")


async def _take(tx: Any) -> None:
    for message in await tx.reap_queue(b"inbox", 2):
        tx.put(b"taken/" + message.value, b"")


def _enqueue(tx: Any) -> None:
    for number in range(3):
        tx.enqueue("queue", b"q%d" % number)


@cache
def written() -> tuple[tuple[bytes, bytes], ...]:
    """Return all that such a store holds."""
    store = EmbeddedStore(1)
    assert store.machine.open()
    db: Any = store.database()

    for step in (_write, _overwrite, _take):
        store.run(db.run(step))
    store.run(db.create_queue("queue"))
    store.run(db.run(_enqueue))
    store.run(db.queue("queue").claim(1))
    store.let_pass(1.0)
    assert store.machine.node is not None
    disks.write_gathered(store.machine.node)
    content = disks.content(store.machine.disk)
    checkers.check(content)
    return tuple(content.iterate(b"", b"\xff"))


class Disk:
    """A copy of it, to be tampered with."""

    def __init__(self) -> None:
        self.pairs: dict[bytes, bytes] = dict(written())

    def under(self, prefix: bytes) -> list[bytes]:
        found = sorted(each for each in self.pairs if each.startswith(prefix))
        assert found, prefix
        return found

    def change(self, raw: bytes, type_: Any, **fields: Any) -> None:
        stored = msgspec.msgpack.decode(self.pairs[raw], type=type_)
        changed = msgspec.structs.replace(stored, **fields)
        self.pairs[raw] = msgspec.msgpack.encode(changed)

    def check(self) -> None:
        checkers.check(self.sorted())

    def sorted(self) -> SortedMap:
        return SortedMap().updated({**self.pairs})


def test_a_sound_disk_passes() -> None:
    Disk().check()


# --- whatever is lost


_MAY_BE_GONE = (keys.HEAD, keys.ACCOUNTING, keys.HISTORY, keys.REAPED)
"""Values and what is left of the past: whether one is missing the history of the clients tells."""


def _is_noticed(raw: bytes) -> bool:
    """Return whether the disk alone tells that a key is missing."""
    if raw < keys.RANGE:
        return raw == _CEILING  # the other ones are the log's, and the node's
    if raw[:1] == keys.TRANSACTION:
        return False  # the history of the clients tells
    if raw[:1] == keys.DATA:
        return raw[raw.index(keys.END_OF_KEY, 1) + 2 :][:1] not in _MAY_BE_GONE
    return raw[9:10] != keys.RECORD or raw == _COUNTERS


def test_the_checker_notices_each_missing_key() -> None:
    """Keys that services make anew, and those that only clients can tell of, are left out."""
    missed, tried = [], 0
    for raw in Disk().pairs:
        if _is_noticed(raw):
            tried += 1
            disk = Disk()
            del disk.pairs[raw]
            try:
                disk.check()
            except (Broken, LookupError):
                continue
            missed.append(raw)
    assert not missed
    assert tried > 20


# --- whatever else is wrong


def _inbox_entries(disk: Disk) -> list[bytes]:
    return disk.under(keys.inbox_prefix(b"inbox"))


def a_delivered_message_is_on_its_way_too(disk: Disk) -> None:
    id_ = _inbox_entries(disk)[0][-20:]
    (entry, *_) = disk.under(_DELIVERABLE)
    disk.pairs[_DELIVERABLE + id_[:8] + id_] = disk.pairs[entry]


def a_dead_update_still_waits(disk: Disk) -> None:
    dead = disk.under(_DEAD)[0]
    id_ = dead[len(_DEAD) :]
    disk.pairs[_EXECUTABLE + id_[:8] + id_] = disk.pairs[disk.under(_EXECUTABLE)[0]]


def the_index_counts_one_too_many(disk: Disk) -> None:
    raw = keys.mail_key(b"inbox")
    mail = msgspec.msgpack.decode(disk.pairs[raw], type=InboxIndexEntry)
    disk.change(raw, InboxIndexEntry, messages=mail.messages + 1)


def the_index_names_another_message(disk: Disk) -> None:
    disk.change(keys.mail_key(b"inbox"), InboxIndexEntry, oldest=_inbox_entries(disk)[-1][-20:])


def a_message_came_before_it_was_sent(disk: Disk) -> None:
    disk.change(_inbox_entries(disk)[0], Delivered, delivered_at=1)


def a_message_is_due_before_it_was_sent(disk: Disk) -> None:
    entry = disk.under(_DELIVERABLE)[0]
    early = _DELIVERABLE + bytes(8) + entry[len(_DELIVERABLE) + 8 :]
    disk.pairs[early] = disk.pairs.pop(entry)


def a_message_was_overtaken(disk: Disk) -> None:
    """Change a message that was due at once, after later ones have arrived."""
    entry = disk.under(_DELIVERABLE)[0]
    first = _inbox_entries(disk)[0]
    id_ = keys.u64(int.from_bytes(first[-20:-12], "big") - 1) + first[-12:]
    stored = disk.pairs.pop(entry).replace(b"later", b"inbox")
    disk.pairs[_DELIVERABLE + id_[:8] + id_] = stored


def a_version_is_newer_than_the_one_after_it(disk: Disk) -> None:
    head = keys.head_key(b"key/0")
    stored = disk.pairs[head]
    disk.pairs[head] = versions.VALUE_KIND + keys.u64(1) + stored[9:]


def a_timestamp_is_above_the_ceiling(disk: Disk) -> None:
    disk.pairs[_CEILING] = keys.u64(1)


def garbage_is_not_listed(disk: Disk) -> None:
    raw = disk.under(_GARBAGE)[0]
    listed = msgspec.msgpack.decode(disk.pairs[raw], type=list[bytes])
    disk.pairs[raw] = msgspec.msgpack.encode(listed[1:])


def a_message_of_a_queue_says_something_else(disk: Disk) -> None:
    body = next(raw for raw in disk.pairs if raw[:1] == keys.DATA and _kind(raw) == keys.QUEUE_BODY)
    others = [raw for raw in disk.pairs if raw[:1] == keys.DATA and _kind(raw) == keys.QUEUE_BODY]
    disk.pairs[body] = disk.pairs[others[-1]]


def _kind(raw: bytes) -> bytes:
    return raw[raw.index(keys.END_OF_KEY, 1) + 2 :][:1]


_TAMPERINGS: dict[Callable[[Disk], None], str] = {
    a_delivered_message_is_on_its_way_too: "the counters say|in two places",
    a_dead_update_still_waits: "the counters say|in two places",
    the_index_counts_one_too_many: "the index says",
    the_index_names_another_message: "the index says",
    a_message_came_before_it_was_sent: "received before it was sent",
    a_message_is_due_before_it_was_sent: "was due before",
    a_message_was_overtaken: "was overtaken",
    a_version_is_newer_than_the_one_after_it: "not in order|misplaced",
    a_timestamp_is_above_the_ceiling: "is above 1",
    garbage_is_not_listed: "nobody will ever remove",
    a_message_of_a_queue_says_something_else: "says nothing, or something else",
}


@pytest.mark.parametrize("tamper", _TAMPERINGS, ids=lambda each: each.__name__)
def test_a_disk_that_was_tampered_with_does_not(tamper: Callable[[Disk], None]) -> None:
    disk = Disk()
    tamper(disk)
    with pytest.raises(Broken, match=_TAMPERINGS[tamper]):
        disk.check()


def test_a_message_in_two_places_is_seen_though_the_counters_agree() -> None:
    """The counters are checked first; here they are made to fit."""
    content = checkers.read_content(Disk().sorted())
    id_ = min(content.inboxes[b"inbox"])
    content.messages[id_] = (id_[:8], b"inbox")
    with pytest.raises(Broken, match="in two places"):
        checkers.check_once(content)
    content = checkers.read_content(Disk().sorted())
    content.updates[content.dead_updates[0]] = bytes(8)
    with pytest.raises(Broken, match="in two places"):
        checkers.check_once(content)


def test_a_message_that_left_an_inbox_twice_is_seen() -> None:
    content = checkers.read_content(Disk().sorted())
    when, id_, receipt = content.reaped[b"inbox"][0]
    content.inboxes[b"inbox"][id_] = receipt  # it came once, left, and is still there
    with pytest.raises(Broken, match="came before it had left"):
        checkers.check_once(content)
    assert when > keys.u64(receipt.delivered_at)
