"""The rules for the content of a disk, whatever the workload, in each of its states.

Each checker reads the raw keys itself, in one pass, and compares the store's own numbers and
lists (counters, index, garbage) with what is there. None of them knows who wrote what.

* **Conservation**: the counters equal the numbers of entries in outboxes, inboxes, dead letters.
* **Index**: the index of inboxes tells number and first message of each inbox that holds any.
* **Once**: no message is in two places: outbox, inbox, reaped, dead.
* **Order**: the versions of a key are strictly ordered; a receipt follows its sending; nothing is
  due before it was committed.
* **Overtaking**: nothing that was due at once waits while a later message has arrived.
* **Clock**: no timestamp in the store is above the stored ceiling.
* **Garbage**: whatever must go one day is on a list that says so.
* **Queues**: their counters equal what is there; each message has one place, and a body. Nothing
  was fired before its time, or above a limit; ordered groups have one at a time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import msgspec

from postroom.kv import keys, versions
from postroom.kv.engine import Reader
from postroom.kv.memory import SortedMap
from postroom.messaging.counters import Counters
from postroom.messaging.handover import marks
from postroom.messaging.handover.channels import Channel
from postroom.messaging.handover.marks import Marks
from postroom.messaging.ingest.requests import JOB_BYTES
from postroom.messaging.queues.records import index_in_use
from postroom.messaging.requests import (
    DeadLetterRecord,
    Deliverable,
    Delivered,
    Executable,
    InboxIndexEntry,
)
from postroom.ranges.bounds import Bounds
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.descriptor import (
    FIRST_GENERATION,
    RangeDescriptor,
    decode_descriptor,
    descriptor_key,
    read_descriptor,
)
from postroom.ranges.state import APPLIED_RECORD, decode_applied
from postroom.ranges.sweep import SWEEP_RECORD
from postroom.ranges.transactions.intents import PreparedRecord, decode_record
from tests.sim import queue_rules

_CEILING: Final = keys.store_key("clock ceiling")

_decode = msgspec.msgpack.decode
_decode_counters = msgspec.msgpack.Decoder(Counters).decode


class Broken(AssertionError):
    """An invariant does not hold."""


def require(holds: bool, what: str) -> None:
    """Raise ``Broken`` unless ``holds``."""
    if not holds:
        raise Broken(what)


@dataclass
class Content:
    """The keys of one state of a range, by what they are. Ids are (timestamp, sender, ordinal)."""

    descriptor: RangeDescriptor = field(default_factory=lambda: decode_descriptor(None, ROOT_ID))
    messages: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict)
    """The deliverable outbox: id to due time and recipient."""
    updates: dict[bytes, bytes] = field(default_factory=dict)
    """The executable outbox: id to due time."""
    outgoing: dict[bytes, Deliverable | Executable] = field(default_factory=dict)
    """The entries on their way to other ranges: kind and position to entry."""
    marks: dict[Channel, Marks] = field(default_factory=dict)
    prepared: dict[bytes, PreparedRecord] = field(default_factory=dict)
    """The prepared records by transaction."""
    unresolved: dict[bytes, bytes] = field(default_factory=dict)
    """The commits of which not all ranges have heard, by name."""
    sweeps: bool = False
    """The question whether the range has still to look for garbage of before its beginning."""
    dead_messages: list[bytes] = field(default_factory=list)
    dead_updates: list[bytes] = field(default_factory=list)
    inboxes: dict[bytes, dict[bytes, Delivered]] = field(default_factory=lambda: defaultdict(dict))
    reaped: dict[bytes, list[tuple[bytes, bytes, Delivered]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """The reaped messages by recipient: when it was reaped, id, message."""
    mail: dict[bytes, InboxIndexEntry] = field(default_factory=dict)
    holds: dict[bytes, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """The messages by recipient that were postponed, and hold up its inbox."""
    versions: dict[bytes, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """The versions by user key, newest first, as stored."""
    records: dict[bytes, bytes] = field(default_factory=dict)
    """The COMMIT records: transaction id to the stored record."""
    garbage: set[bytes] = field(default_factory=set)
    must_be_listed: list[bytes] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    queues: dict[bytes, bytes] = field(default_factory=dict)
    """The stored records of queues, without the bodies and states of messages.

    The definitions of the root belong to them; copies for a split do not.
    """
    index: bytes = keys.QUEUES
    """The index of queues that is in use."""
    slots: dict[bytes, bytes] = field(default_factory=dict)
    """The slots of queues that the range owns, and pools of slots, by name."""
    said: dict[bytes, bytes] = field(default_factory=dict)
    """Bodies and states of their messages, and pointers to them."""
    staged: dict[bytes, bytes] = field(default_factory=dict)
    """Staged rows, and the records of their jobs and queries."""
    collected: int = 0
    ceiling: int = 0
    newest: bytes = b""


def read_content(disk: Reader, range_id: int = ROOT_ID) -> Content:
    """Sort out everything that a disk holds of a range."""
    content = Content(read_descriptor(disk, range_id))
    content.ceiling = _number(disk.get(_CEILING))
    content.index = index_in_use(disk, range_id)
    definitions = keys.queue_definitions_prefix(ROOT_ID)
    content.queues.update(disk.iterate(definitions, keys.after_prefix(definitions)))
    for span in engine_spans(content.descriptor):
        for raw, stored in disk.iterate(*span):
            _SPACES[raw[:1]](content, raw, stored)
    return content


def engine_spans(descriptor: RangeDescriptor) -> tuple[tuple[bytes, bytes], ...]:
    """Return the spans of all engine keys of a range; everything, if it has every key."""
    bounds = Bounds(descriptor)
    if bounds.is_whole:
        return ((keys.RANGE, keys.STAGED_END),)
    prefix = keys.range_prefix(descriptor.range_id)
    return ((prefix, keys.after_prefix(prefix)), *bounds.spans)


def ranges_on(disk: Reader) -> list[int]:
    """Return the ids of the ranges of which a disk has a state."""
    found, lower = [ROOT_ID], keys.RANGE + keys.u64(ROOT_ID + 1)
    while key := next((raw for raw, _ in disk.iterate(lower, keys.TRANSACTION)), None):
        range_id = int.from_bytes(key[1:9], "big")
        if disk.get(descriptor_key(range_id)) is not None:
            found.append(range_id)
        lower = keys.RANGE + keys.u64(range_id + 1)
    return found


def _number(stored: bytes | None) -> int:
    return int.from_bytes(stored or b"", "big")


def _read_range(content: Content, raw: bytes, stored: bytes) -> None:
    kind, rest = raw[9:10], raw[10:]
    if raw[1:9] > keys.u64(content.descriptor.range_id) and keys.is_of_queues(raw):
        return  # a right half that is to come
    require(
        raw[1:9] == keys.u64(content.descriptor.range_id), f"a key of another range: {raw.hex()}"
    )
    if kind in {keys.DELIVERABLE, keys.EXECUTABLE} and rest[:1] == keys.OUTGOING:
        _read_outgoing(content, kind, rest[1:], stored)
    elif kind == keys.DELIVERABLE:
        content.messages[rest[9:]] = rest[1:9], _decode(stored, type=Deliverable).key
    elif kind == keys.EXECUTABLE:
        due, id_ = rest[1:9], rest[9:]
        if _decode(stored, type=Executable).is_received:
            due = max(due, id_[:8])  # a further part has an id of its own, and the place of all
        content.updates[id_] = due
    elif kind == keys.DEAD_LETTER:
        record = _decode(stored, type=DeadLetterRecord)
        (content.dead_updates if record.update else content.dead_messages).append(rest)
    elif kind == keys.GARBAGE:
        content.garbage.update(_decode(stored, type=list[bytes]))
    elif kind in {keys.MARKS, keys.PREPARED, keys.UNRESOLVED}:
        _read_spanning(content, kind, rest, stored)
    elif kind in {keys.QUEUES, keys.OTHER_QUEUES} or b"queue " in rest[:12]:
        _read_queues(content, raw, stored)
    else:
        _read_range_record(content, rest, stored)


def _read_queues(content: Content, raw: bytes, stored: bytes) -> None:
    """Read a record of the index in use, or of the counters beside it, as of the first index."""
    range_id, index = content.descriptor.range_id, content.index
    head, counters = raw[:9] + index, keys.queue_counters_prefix(range_id, index)
    if raw.startswith(counters):
        number = int(raw[len(counters) :])
        content.queues[keys.queue_counters_key(range_id, number)] = stored
    elif raw.startswith(head) and raw[10:14] != keys.u32(0):
        content.queues[raw[:9] + keys.QUEUES + raw[10:]] = stored


def _read_range_record(content: Content, name: bytes, stored: bytes) -> None:
    if name == SWEEP_RECORD.encode():
        content.sweeps = True
    elif name == APPLIED_RECORD.encode():
        content.counters = check_sums(decode_applied(stored).sums)
    elif name == b"collected":
        content.collected = _number(stored)
    elif name.startswith((b"slots ", b"pool ")):
        content.slots[name] = stored


def _read_spanning(content: Content, kind: bytes, rest: bytes, stored: bytes) -> None:
    if kind == keys.MARKS:
        channel = Channel(_number(rest[:8]), rest[8:9] == keys.EXECUTABLE, rest[9])
        content.marks[channel] = marks.decode(stored)
    elif kind == keys.PREPARED:
        content.prepared[rest] = decode_record(stored)
    else:
        content.unresolved[rest] = stored


def _read_outgoing(content: Content, kind: bytes, position: bytes, stored: bytes) -> None:
    require(
        content.descriptor.generation > FIRST_GENERATION,
        "a range without neighbours has an outgoing entry",
    )
    entry = Deliverable if kind == keys.DELIVERABLE else Executable
    content.outgoing[kind + position] = _decode(stored, type=entry)


def _read_record(content: Content, raw: bytes, stored: bytes) -> None:
    content.records[raw[-16:]] = stored
    content.must_be_listed.append(raw)
    content.newest = max(content.newest, stored[:8])


def _read_mail(content: Content, raw: bytes, stored: bytes) -> None:
    content.mail[keys.user_key(raw)] = _decode(stored, type=InboxIndexEntry)


def _read_staged(content: Content, raw: bytes, stored: bytes) -> None:
    content.staged[raw] = stored


def _read_data(content: Content, raw: bytes, stored: bytes) -> None:
    end = raw.index(keys.END_OF_KEY, 1) + 2
    key, suffix, rest = keys.user_key(raw), raw[end : end + 1], raw[end + 1 :]
    if suffix == keys.HEAD:
        content.versions[key].append(stored)
        content.newest = max(content.newest, stored[1:9])
        if stored[0] == versions.TOMBSTONE:
            content.must_be_listed.append(raw)
    elif suffix == keys.HISTORY:
        require(keys.complement(rest) == stored[1:9], f"a version of {key!r} is misplaced")
        content.versions[key].append(stored)
        content.must_be_listed.append(raw)
    elif suffix == keys.INBOX:
        require(_number(rest[8:16]) >= ROOT_ID, f"a message to {key!r} has no sender")
        content.inboxes[key][rest] = _decode(stored, type=Delivered)
    elif suffix == keys.REAPED:
        content.must_be_listed.append(raw)
        for id_, message in _decode(stored, type=list[tuple[bytes, bytes]]):
            receipt = _decode(message, type=Delivered)
            content.reaped[key].append((keys.complement(rest[:8]), id_, receipt))
    elif suffix == keys.HOLD_UP:
        content.holds[key].append(rest)
    elif suffix in {keys.QUEUE_BODY, keys.QUEUE_STATE, keys.QUEUE_POINTER}:
        content.said[raw] = stored


_SPACES: Final = {
    keys.RANGE: _read_range,
    keys.TRANSACTION: _read_record,
    keys.MAIL: _read_mail,
    keys.DATA: _read_data,
    keys.STAGED: _read_staged,
}


# --- the checkers ---------------------------------------------------------------------------------


def check(disk: SortedMap) -> Content:
    """Raise ``Broken`` if anything is wrong with what a disk holds of its only range."""
    content = read_content(disk)
    for checker in CHECKERS:
        checker(content)
    return content


def check_conservation(content: Content) -> None:
    """Check that the counters equal what is there."""
    counters = content.counters
    in_inboxes = sum(len(inbox) for inbox in content.inboxes.values())
    dead = len(content.dead_messages) + len(content.dead_updates)
    updates = sum(key[:1] == keys.EXECUTABLE for key in content.outgoing)
    was_split = content.descriptor.generation > FIRST_GENERATION
    found = msgspec.structs.replace(
        counters,
        # Messages that were delivered before a split may have gone to the right half.
        delivered=counters.delivered if was_split else counters.reaped + in_inboxes,
        pending_messages=len(content.messages),
        pending_updates=len(content.updates),
        dead=counters.discarded + dead,
        outgoing_messages=len(content.outgoing) - updates,
        outgoing_updates=updates,
    )
    require(counters == found, f"the counters say {counters}, but there is {found}")
    require(counters.conserved(), f"messages are lost or made up: {counters}")


def check_sums(packed: bytes) -> Counters:
    """Check the counters that an entry leaves, and return them."""
    counters = _decode_counters(packed) if packed else Counters()
    require(counters.conserved(), f"messages are lost or made up: {counters}")
    return counters


def check_index(content: Content) -> None:
    """Check that the index of inboxes tells what they hold, and what holds them up."""
    found = {}
    for key in {*content.inboxes, *content.holds}:
        inbox = content.inboxes.get(key, {})
        holds = [id_ for id_ in content.holds.get(key, ()) if id_ in content.messages]
        oldest, held = min(inbox, default=b""), min(holds, default=b"")
        if inbox or held:
            found[key] = InboxIndexEntry(len(inbox), oldest, held)
    require(content.mail == found, f"the index says {content.mail}, the inboxes hold {found}")


def check_once(content: Content) -> None:
    """Check that no message, and no update, is in two places.

    None has left an inbox twice, unless it was tried in vain, and had come back meanwhile.
    """
    delivered = [id_ for inbox in content.inboxes.values() for id_ in inbox]
    everywhere = (
        (*content.messages, *content.dead_messages, *delivered),
        (*content.updates, *content.dead_updates),
    )
    for ids in everywhere:
        twice = [id_.hex() for id_, number in Counter(ids).items() if number > 1]
        require(not twice, f"in two places at once: {twice}")
    stays: dict[bytes, list[tuple[int, float]]] = defaultdict(list)
    for taken in content.reaped.values():
        for when, id_, receipt in taken:
            stays[id_].append((receipt.delivered_at, _number(when)))
    for inbox in content.inboxes.values():
        for id_, receipt in inbox.items():
            stays[id_].append((receipt.delivered_at, float("inf")))
    for id_, spans in stays.items():
        for (_, left), (came, _) in pairwise(sorted(spans)):
            require(left <= came, f"in two places at once: {id_.hex()} came before it had left")


def check_order(content: Content) -> None:
    """Check that versions are ordered, receipts follow sendings, and nothing is due too early."""
    for key, stored in content.versions.items():
        stamps = [version[1:9] for version in stored]
        require(
            all(newer > older for newer, older in _neighbours(stamps)),
            f"the versions of {key!r} are not in order: {[stamp.hex() for stamp in stamps]}",
        )
    for id_, receipt in _receipts(content):
        sent = int.from_bytes(id_[:8], "big")
        require(receipt.delivered_at > sent, f"{id_.hex()} was received before it was sent")
    dues = {id_: due for id_, (due, _) in content.messages.items()}
    for id_, due in (*dues.items(), *content.updates.items()):
        require(due >= id_[:8], f"{id_.hex()} was due before it was committed")
    for key, taken in content.reaped.items():
        for when, id_, receipt in taken:
            require(
                int.from_bytes(when, "big") > receipt.delivered_at,
                f"{id_.hex()} was reaped from {key!r} before it was there",
            )


def check_overtaking(content: Content) -> None:
    """Check that a message due at once has not been overtaken by a later one."""
    arrived: dict[tuple[bytes, bytes], bytes] = defaultdict(bytes)
    ids = [(key, id_) for key, inbox in content.inboxes.items() for id_ in inbox]
    ids += [(key, id_) for key, taken in content.reaped.items() for _, id_, _ in taken]
    for key, id_ in ids:
        by_sender = key, id_[8:16]
        arrived[by_sender] = max(arrived[by_sender], id_)
    for id_, (due, key) in content.messages.items():
        last = arrived.get((key, id_[8:16]), b"")
        late = due == id_[:8] and last > id_
        require(not late, f"{id_.hex()} to {key!r} was overtaken by {last.hex()}")


def _receipts(content: Content) -> Iterator[tuple[bytes, Delivered]]:
    for inbox in content.inboxes.values():
        yield from inbox.items()
    for taken in content.reaped.values():
        yield from ((id_, receipt) for _, id_, receipt in taken)


def _neighbours(ordered: list[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return pairwise(ordered)


def check_clock(content: Content) -> None:
    """Check that the ceiling is above all timestamps: after a restart none is handed out twice."""
    newest = int.from_bytes(content.newest, "big")
    require(newest <= content.ceiling, f"timestamp {newest} is above {content.ceiling}")


def check_garbage(content: Content) -> None:
    """Check that each obsolete record is on a list of garbage, or will be looked for."""
    if content.sweeps:
        return
    kept = content.garbage | {keys.TRANSACTION + name for name in content.unresolved}
    forgotten = [raw for raw in content.must_be_listed if raw not in kept]
    require(not forgotten, f"nobody will ever remove {forgotten[:3]}")


def check_staged(content: Content) -> None:
    """Check that each chunk of staged rows belongs to a task attempt, and that to a job."""
    for raw in content.staged:
        subspace, end = raw[1:2], raw.index(keys.END_OF_KEY, 2) + 2
        owner = b""
        if subspace == keys.STAGED_CHUNK:
            owner = keys.STAGED + keys.STAGED_TASK_ATTEMPT + raw[2:-4]
        elif subspace == keys.STAGED_TASK_ATTEMPT:
            owner = keys.STAGED + keys.STAGED_JOB + raw[2 : end + JOB_BYTES]
        require(not owner or owner in content.staged, f"{raw!r} belongs to nothing")


def check_queues(content: Content) -> None:
    """Check that the stored records of queues are consistent."""
    for complaint in queue_rules.complaints(content.queues, content.said):
        require(False, complaint)


CHECKERS: Final = (
    check_conservation,
    check_index,
    check_once,
    check_order,
    check_overtaking,
    check_clock,
    check_garbage,
    check_queues,
    check_staged,
)
