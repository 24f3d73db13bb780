"""The messages and updates in transit between ranges, in an image that is restored into one range.

An outgoing entry that its receiver has taken is in two places until it is dropped: in the outbox,
and where it was taken to. The marks of the receivers tell (:mod:`.marks`)::

    outbox of range 1    10  20  30          ┐
    marks of range 2     up to 20            ├─▶ one outbox: 30
    inboxes of range 2   10, 20              ┘   no marks: nothing is sent to this range

An update over several ranges may be taken in some of them. The parts that are left become entries
of their own, in its place. All updates in transit get ids of a sender that no range is, so that
there is room for them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec

from postroom import limits
from postroom.errors import Invalid, Unavailable
from postroom.kv import keys
from postroom.messaging.handover import marks as pieces
from postroom.messaging.handover.channels import Channel, lane_of
from postroom.messaging.handover.marks import Marks, mark_of
from postroom.messaging.handover.parts import first_key, new_parts
from postroom.messaging.image_entries import COUNTERS_NAME
from postroom.messaging.queues.crossing import are_slots
from postroom.messaging.requests import Counters, Deliverable, Executable

Entries: TypeAlias = tuple[Sequence[bytes], Sequence[bytes | None]]
"""Names of an image in rising order, and the value of each."""

_OUTBOXES: Final = keys.RANGE + keys.DEAD_LETTER
"""The name before which the entries of outboxes lie."""
_MESSAGES: Final = keys.RANGE + keys.DELIVERABLE + keys.OUTGOING
_UPDATES: Final = keys.RANGE + keys.EXECUTABLE + keys.OUTGOING
_RANGE_ID_BYTES: Final = 8
_SENDER_AT: Final = 16
_NO_RANGE: Final = 1 << 62
_PIECE_BYTES: Final = 250
"""The memory of a piece of marks besides its keys, about."""

_encode: Final = msgspec.msgpack.Encoder().encode
_messages: Final = msgspec.msgpack.Decoder(Deliverable)
_updates: Final = msgspec.msgpack.Decoder(Executable)
_counters: Final = msgspec.msgpack.Decoder(Counters)


class StoreMarks:
    """The marks of all channels between ranges."""

    def __init__(self) -> None:
        self._of: defaultdict[Channel, Marks] = defaultdict(list)
        self._bytes = 0

    def add(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Add the marks of one range; ranges come in the order of their keys.

        Raises:
            Invalid: the marks of all ranges have no room in memory.
        """
        for name, stored in entries:
            sender = int.from_bytes(name[2:10], "big")
            channel = Channel(sender, name[10:11] == keys.EXECUTABLE, name[11])
            added = pieces.decode(stored)
            self._bytes += len(stored) + _PIECE_BYTES * len(added)
            if self._bytes > limits.TRANSIT_BYTES_MAX:
                raise Invalid(
                    f"the marks of messages between ranges are more than "
                    f"{limits.TRANSIT_BYTES_MAX >> 20} MiB; nothing was read: stop all "
                    "nodes, and copy their folders"
                )
            pieces.extend(self._of[channel], added)

    def of(self, channel: Channel) -> Marks:
        """Return the marks of a channel at all of its receivers."""
        return self._of.get(channel, [])


class Transit:
    """The entries of one range that belong to no key, without what others have taken.

    Slots of queues are left out, too: one range owns all of them.

    Args:
        range_id: the id of the range.
        marks: the marks at all ranges.
        with_slots: whether slots are not left out.

    Attributes:
        taken: the number of entries that others have taken so far, at least in part.
    """

    def __init__(self, range_id: int, marks: StoreMarks, *, with_slots: bool = False) -> None:
        self.taken = 0
        self._range_id = range_id
        self._marks = marks
        self._with_slots = with_slots
        self._changes: Counter[str] = Counter()

    def of(self, entries: Entries) -> Entries:
        """Return what is left of a page of entries; the counters, which come last, say so too."""
        names, stored = entries
        if names[0] >= _OUTBOXES and COUNTERS_NAME not in names:
            return entries
        left = [
            each
            for name, value in zip(names, stored, strict=True)
            for each in self._left(name, value or b"")
        ]
        return [name for name, _ in left], [value for _, value in left]

    def _left(self, name: bytes, stored: bytes) -> Iterator[tuple[bytes, bytes]]:
        if name.startswith(_MESSAGES):
            yield from self._message(name, stored)
        elif name.startswith(_UPDATES):
            yield from self._update(name, stored)
        elif name == COUNTERS_NAME:
            yield name, self._counted(stored)
        else:
            yield name, stored

    def _message(self, name: bytes, stored: bytes) -> Iterator[tuple[bytes, bytes]]:
        entry = _messages.decode(stored)
        key = entry.key
        mark = mark_of(self._marks.of(Channel(self._range_id, False, lane_of(key))), key)
        is_taken = name[len(_MESSAGES) :] <= mark
        self.taken += is_taken
        if not is_taken and (self._with_slots or not are_slots(entry)):
            yield name, stored
        else:
            self._changes.update(
                outgoing_messages=-1, handed=1, outgoing_bytes=-_size(name, stored)
            )

    def _update(self, name: bytes, stored: bytes) -> Iterator[tuple[bytes, bytes]]:
        entry, position = _updates.decode(stored), name[len(_UPDATES) :]
        marks = self._marks.of(Channel(self._range_id, True, 0))
        request: Any = entry.request
        parts = [*islice(new_parts(request, marks, position), limits.TRANSIT_PARTS_MAX + 1)]
        if len(parts) > limits.TRANSIT_PARTS_MAX:
            raise Unavailable(
                f"more than {limits.TRANSIT_PARTS_MAX} parts of one deferred update are on their "
                "way to other ranges; nothing was read: try again when they have arrived"
            )
        left = [
            (_UPDATES + _renamed(position, number), _encode(_with(entry, part)))
            for number, part in enumerate(parts)
        ]
        # It was handed over with its first part; each other part is one more update.
        was_handed = position <= mark_of(marks, first_key(request))
        self.taken += was_handed
        self._changes.update(
            handed=was_handed, enqueued=len(left) - (not was_handed),
            outgoing_updates=len(left) - 1,
            outgoing_bytes=sum(_size(*each) for each in left) - _size(name, stored),
        )  # fmt: skip
        yield from left

    def _counted(self, stored: bytes) -> bytes:
        known = msgspec.structs.asdict(_counters.decode(stored))
        changed = Counters(**{each: known[each] + self._changes[each] for each in known})
        assert changed.conserved(), f"messages in transit were lost or made up: {changed}"
        return _encode(changed)


def _with(entry: Executable, part: Any) -> Executable:
    return msgspec.structs.replace(entry, request=part)


def _renamed(position: bytes, number: int) -> bytes:
    """Return the position of a part of an update, in the order of positions."""
    head, sender = position[:_SENDER_AT], position[_SENDER_AT : _SENDER_AT + _RANGE_ID_BYTES]
    ordinal = int.from_bytes(position[_SENDER_AT + _RANGE_ID_BYTES :], "big")
    other = int.from_bytes(sender, "big") | _NO_RANGE
    return head + keys.u64(other) + keys.u32(ordinal * limits.TRANSIT_PARTS_MAX + number)


def _size(name: bytes, stored: bytes) -> int:
    """Return the size of an entry in its outbox, as its range counts it."""
    return len(name) + _RANGE_ID_BYTES + len(stored)
