"""The rules of queues in every state of a disk, read from their raw keys.

* The counters equal what is there, and are conserved.
* A message is in one place of its queue, and has a body. One that is done is in a list, or purged.
* Nothing is leased that was not due. At most ``max_concurrency`` messages are leased, and one of an
  ordered group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from postroom.kv import keys
from postroom.messaging.queues import records
from postroom.messaging.queues.definition_requests import QueueDefinition
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.queues.records import Ended, Entry, Holding
from postroom.ranges.contract import ROOT_ID

_decode: Final = msgspec.msgpack.decode
_PARTS: Final = {
    keys.SCHEDULED: "scheduled",
    keys.READY: "ready",
    keys.LEASED: "leased",
    keys.DEAD: "dead",
    keys.DONE: "done",
    keys.ARCHIVED: "archived",
}


class _Lease(NamedTuple):
    entry: Entry
    since: int


class _Queue:
    """One queue as it is stored."""

    def __init__(self, definition: QueueDefinition, range_id: int) -> None:
        self.definition = definition
        self.layout = records.QueueLayout(range_id, definition.number)
        self.counted = QueueCounts()
        self.entries: dict[str, list[Entry]] = defaultdict(list)
        self.leases: list[_Lease] = []
        self.holdings: dict[bytes, Holding] = {}
        self.over: dict[bytes, set[int]] = defaultdict(set)
        self.ended: dict[str, list[Ended]] = defaultdict(list)

    def add(self, key: bytes, stored: bytes) -> str:
        """Add a key to its part; return a complaint if it is misplaced."""
        part, rest = _PARTS.get(key[14:15], ""), key[15:]
        if part in {"done", "archived"}:
            self.ended[part] += _decode(stored, type=list[Ended])
        elif part == "leased" and len(rest) > 20:
            over = self.over[key[:-8]]
            numbers = _decode(stored, type=list[int])
            if over.intersection(numbers) or len(set(numbers)) < len(numbers):
                return f"what is over is over twice: {numbers} of {key[:-8].hex()}"
            over.update(numbers)
        elif part == "leased":
            self.holdings[key] = holding = records.holdings.decode(stored)
            if rest[:8] != keys.u64(holding.until):
                return f"a holding is misplaced: {holding}"
        elif part:
            entry = _decode(stored, type=Entry)
            self.entries[part].append(entry)
            if rest[-12:] != entry.seq:
                return f"an entry is misplaced: {entry}"
            ordered = self.definition.settings.order == "group"
            if part == "scheduled" and key != self.layout.scheduled_key(entry, ordered=ordered):
                return f"it is due at another time: {entry}"
            if part == "ready" and key != self.layout.ready_key(entry, ordered=ordered):
                return f"it is ready at another place: {entry}"
        return ""

    def read_leases(self) -> str:
        """Read the leases once all keys are there; return a complaint if a holding is empty."""
        for key, holding in self.holdings.items():
            over = self.over.pop(key, set())
            held = [each for n, each in enumerate(holding.entries) if n not in over]
            self.entries["leased"] += held
            self.leases += [_Lease(each, holding.since) for each in held]
            if not over <= set(range(len(holding.entries))):
                return f"more is over than was held: {holding}, over are {over}"
            if not held:
                return f"a holding holds nothing: {holding}, over are {over}"
        return f"marks of no holding: {self.over}" if self.over else ""


def complaints(queues: dict[bytes, bytes], said: dict[bytes, bytes]) -> Iterator[str]:
    """Yield what is wrong with the queues of a range on a disk.

    Args:
        queues: what is stored of them; ``said``: the bodies and states of their messages. The disk
            may not know the definitions of some yet, or any more.
    """
    range_id = max((int.from_bytes(key[1:9], "big") for key in queues), default=0)
    known: dict[bytes, _Queue] = {}
    for key, stored in queues.items():
        if _is_definition(key):
            queue = _Queue(_decode(stored, type=QueueDefinition), range_id)
            known[queue.layout.number] = queue
    for key, stored in queues.items():
        if _is_definition(key) or (range_id != ROOT_ID and _number_in(key) not in known):
            continue
        queue = known[_number_in(key)]
        if key[9:10] == keys.RECORD:
            queue.counted = _decode(stored, type=QueueCounts)
        elif complaint := queue.add(key, stored):
            yield complaint
    for queue in known.values():
        complaint = queue.read_leases()
        if not queue.definition.dropped:
            if complaint:
                yield complaint
            yield from _counters(queue)
            yield from _places(queue, said)
            yield from _limits(queue)


def _is_definition(key: bytes) -> bool:
    return key[9:14] == keys.QUEUES + keys.u32(0)


def _number_in(key: bytes) -> bytes:
    """Return the number of the queue to which a record belongs."""
    return keys.u32(int(key[10:].split()[1])) if key[9:10] == keys.RECORD else key[10:14]


def _counters(queue: _Queue) -> Iterator[str]:
    counted = queue.counted
    if not counted.conserved():
        yield f"messages of {queue.definition.name} are lost, or made up: {counted}"
    for part in ("scheduled", "ready", "leased", "dead"):
        found = len(queue.entries[part])
        if getattr(counted, part) != found:
            yield f"{queue.definition.name} has {found} that are {part}, but says {counted}"
    done = sum(each.status == records.DONE for each in queue.ended["done"])
    archived = len(queue.ended["archived"])
    if (counted.done, counted.archived) != (done, archived):
        yield f"{queue.definition.name} has {done} done, {archived} archived, but says {counted}"


def _places(queue: _Queue, said: dict[bytes, bytes]) -> Iterator[str]:
    everywhere = [entry for entries in queue.entries.values() for entry in entries]
    ended = [each for listed in queue.ended.values() for each in listed]
    yield from _twice(queue, [*(each.seq for each in everywhere), *(each.seq for each in ended)])
    for entry in everywhere:
        body = said.get(queue.layout.body_key(*entry.locator))
        if body is None or records.bodies.decode(body).seq != entry.seq:
            yield f"{entry} of {queue.definition.name} says nothing, or something else"
        elif entry.payload not in {None, records.bodies.decode(body).payload}:
            yield f"{entry} of {queue.definition.name} says something else than its body"
        state = said.get(queue.layout.state_key(*entry.locator))
        if state is not None:
            found = records.states.decode(state)
            wanted = records.DEAD if entry in queue.entries["dead"] else records.LIVE
            if (found.status, found.seq) != (wanted, entry.seq):
                yield f"{entry} of {queue.definition.name} has another state: {found}"


def _twice(queue: _Queue, seqs: Iterable[bytes]) -> Iterator[str]:
    for seq, number in Counter(seqs).items():
        if number > 1:
            yield f"a message of {queue.definition.name} is in {number} places: {seq.hex()}"


def _limits(queue: _Queue) -> Iterator[str]:
    settings = queue.definition.settings
    most = settings.max_concurrency
    if most is not None and len(queue.leases) > most:
        yield f"{len(queue.leases)} of {queue.definition.name} are leased, more than {most}"
    for lease in queue.leases:
        if lease.since < max(lease.entry.due, lease.entry.not_before):
            yield f"it was fired before its time: {lease}"
    if settings.order == "group":
        groups = Counter(lease.entry.group for lease in queue.leases)
        for group, number in groups.items():
            if group and number > 1:
                yield f"{number} of the ordered group {group} are leased"
