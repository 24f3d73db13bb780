"""The sending service: it hands over what is outgoing, and deletes what receivers have taken.

::

    outgoing entries ── read once, in order ──▶ destinations ── a batch each ──▶ Carrier
      ▲                                                                             │
      └── DropHandedOver ◀── entries below the marks ◀── answered: marks of a span ◀┘

A *destination* is a channel and the range that owns a part of its keys. One batch is under way for
each, and they take turns. A batch that is not answered in time is sent again. All of this is in
memory, and is forgotten with the lease, or when the carrier learns of other ranges: everything is
read again from the first entry. A receiver knows what it has taken.

Only applied entries are read, so a deposed leaseholder only repeats what is irrevocable.

A destination keeps the positions of its first entries. If many more wait for it, they are found in
the outbox again later. A range that cannot be reached therefore holds up no other one, and takes no
memory for what waits for it.

An update over several ranges goes to the destination of each of them, in parts (:mod:`.parts`). It
is deleted when all of them have taken their parts: when it waits for none of them.

The batches under way are limited in bytes, and so is the memory that they take.

Invariant: a batch begins with the first entry of its channel for the keys of its range, and has no
gap. Entries are read in order, each goes to the destinations of its keys, and the destinations of a
channel do not overlap.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from postroom.errors import CommitUnknown, Retryable, TransactionTooLarge, Unavailable
from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.limits import HANDED_OVER_BYTES_MAX, HANDED_OVER_MAX
from postroom.messaging.handover.channels import Channel, lane_of
from postroom.messaging.handover.marks import Marks, mark_of
from postroom.messaging.handover.outgoing import Outgoing
from postroom.messaging.handover.parts import (
    first_key,
    is_simple,
    new_parts,
    part_within,
    spans_of,
)
from postroom.messaging.handover.requests import DropHandedOver, HandOver
from postroom.messaging.outbox import Outboxes
from postroom.messaging.requests import Deliverable, Executable
from postroom.ranges.carrier import Carrier, Recipient
from postroom.ranges.held_answers import HeldAnswers
from postroom.ranges.ports import ServiceWakeUp

READ_AT_ONCE: Final = 2048
"""The number of outgoing entries that a step of the service reads."""
KEPT: Final = 4096
"""The number of positions that a destination keeps."""
ANSWER_SECONDS: Final = 5.0
"""The time after which a batch without an answer is sent again."""
UNDER_WAY_BYTES: Final = 16 * 1024 * 1024
"""The bytes under way after which no other batch leaves."""
PAUSE_SECONDS_FIRST: Final = 0.05
PAUSE_SECONDS_LAST: Final = 5.0


@dataclass(eq=False)
class _Destination:
    """A range, and the entries of a channel that wait for it.

    Attributes:
        channel, recipient: see :class:`Channel` and :class:`Recipient`.
        waiting: the positions of the first entries, in order.
        unread: the engine key from which further ones are to be found again; empty: there are none.
        under_way: the batch that is under way; `None`: there is none.
        size: the bytes of that batch.
        free_at: when the next batch may leave, or the one under way is given up.
        entries_max: the number of entries in the next batch, at most.
        pause: the pause after the next failure.
    """

    channel: Channel
    recipient: Recipient
    waiting: deque[bytes] = field(default_factory=deque)
    unread: bytes = b""
    under_way: HandOver | None = None
    size: int = 0
    free_at: float = 0.0
    entries_max: int = field(default_factory=lambda: HANDED_OVER_MAX)
    pause: float = PAUSE_SECONDS_FIRST

    def note_taken(self, taken: list[bytes]) -> None:
        """Note that the range has taken the entries at positions."""
        waiting, positions = self.waiting, set(taken)
        while waiting and waiting[0] in positions:
            positions.remove(waiting.popleft())
        if positions:
            self.waiting = deque(each for each in waiting if each not in positions)

    def waits_for(self, key: bytes, position: bytes) -> bool:
        """Return whether the entry at an engine key waits for the range."""
        return position in self.waiting or (self.unread != b"" and key >= self.unread)

    def note_answer(self, answer: Marks | Exception, now: float) -> None:
        """Let the next batch leave; after a failure later, and smaller if that can help."""
        self.under_way = None
        if not isinstance(answer, Exception):
            self.free_at, self.pause = 0.0, PAUSE_SECONDS_FIRST
            self.entries_max = HANDED_OVER_MAX
            return
        if isinstance(answer, TransactionTooLarge):
            self.entries_max = max(self.entries_max // 2, 1)
        least = answer.retry_after if isinstance(answer, Unavailable) else 0.0
        self.free_at = now + max(self.pause, least)
        self.pause = min(2 * self.pause, PAUSE_SECONDS_LAST)


@dataclass(eq=False)
class SendingService:
    """The service of a leaseholder that hands over what is outgoing; see the module.

    Attributes:
        range_id: the id of the range.
        outboxes: its outboxes.
        stored: the applied state.
        carrier: the way to other ranges.
        send: a function that sends a request to the range itself, as upkeep.
        wake_up: the wake-up that entries have become outgoing.
        monotonic: seconds that never go back.
        look_seconds: returns how long it waits at most while something is outgoing.
        held: the answers that are given when entries have been taken, by the positions of these.
    """

    range_id: int
    outboxes: Outboxes
    stored: Reader
    carrier: Carrier
    send: Callable[[Any], Awaitable[Any]]
    wake_up: ServiceWakeUp
    monotonic: Callable[[], float]
    look_seconds: Callable[[], float]
    held: HeldAnswers
    _destinations: dict[tuple[Channel, Recipient], _Destination] = field(default_factory=dict)
    _read_up_to: dict[bool, bytes] = field(default_factory=dict)
    _version: int = -1
    _answers: list[tuple[_Destination, HandOver, Marks | Exception]] = field(default_factory=list)

    async def run(self) -> None:
        """Hand over outgoing entries for ever."""
        self._answers.clear()
        self._begin_anew()
        while True:
            try:
                await self._drop(self._take_answers())
                pause = self.send_batches()
            except (Retryable, CommitUnknown):
                self._begin_anew()  # the stored entries are the truth
                pause = PAUSE_SECONDS_FIRST
            await self.wake_up.wait(pause)

    def _begin_anew(self) -> None:
        """Forget everything but what the outboxes contain."""
        self._version = self.carrier.version
        self._destinations.clear()
        self._read_up_to = {
            are_updates: self._outgoing(are_updates).prefix for are_updates in (False, True)
        }

    def _outgoing(self, are_updates: bool) -> Outgoing:
        outbox = self.outboxes.executable if are_updates else self.outboxes.deliverable
        return outbox.outgoing

    # --- answers

    def _take_answers(self) -> dict[bool, list[bytes]]:
        """Take the answers that have come; return the positions that may be deleted."""
        answers, self._answers = self._answers, []
        taken: dict[bool, list[bytes]] = {False: [], True: []}
        for destination, batch, answer in answers:
            if destination.under_way is batch:
                destination.note_answer(answer, self.monotonic())
            if not isinstance(answer, Exception):
                taken[batch.channel.has_updates] += self._taken(destination, batch, answer)
        for position in taken[False]:
            self.held.told(position)
        return taken

    def _taken(self, destination: _Destination, batch: HandOver, known: Marks) -> list[bytes]:
        """Return the positions of a batch whose entries are taken by all of their ranges."""
        channel = batch.channel
        if not channel.has_updates:
            taken = [at for at, entry in batch.messages if at <= mark_of(known, entry.key)]
            destination.note_taken(taken)
            return taken
        parts = [
            (at, part.request)
            for at, part in batch.updates
            if not any(True for _ in new_parts(part.request, known, at))
        ]
        destination.note_taken([at for at, _ in parts])
        return [at for at, part in parts if is_simple(part) or self._is_taken_by_all(channel, at)]

    def _is_taken_by_all(self, channel: Channel, position: bytes) -> bool:
        """Return whether all ranges that an update concerns have taken their parts of it."""
        outgoing = self._outgoing(channel.has_updates)
        key = outgoing.prefix + position
        stored = self.stored.get(key)
        if stored is None or key >= self._read_up_to[channel.has_updates]:
            return False
        for recipient in self._recipients(outgoing.decode(stored)):
            destination = self._destinations.get((channel, recipient))
            if destination is None or destination.waits_for(key, position):
                return False
        return True

    async def _drop(self, taken: dict[bool, list[bytes]]) -> None:
        """Delete entries that their receivers have taken."""
        for are_updates, positions in taken.items():
            for first in range(0, len(positions), HANDED_OVER_MAX):
                some = tuple(positions[first : first + HANDED_OVER_MAX])
                await self.send(DropHandedOver(are_updates, some))

    # --- batches

    def send_batches(self) -> float:
        """Send a batch to each destination that is free; return for how long to wait then."""
        if self._version != self.carrier.version:
            self._begin_anew()
        has_more = self._read(False) | self._read(True)
        now = self.monotonic()
        pause = 0.0 if has_more else self._longest_pause()
        every = list(self._destinations.items())
        size = sum(each.size for _, each in every if each.under_way and each.free_at > now)
        for name, destination in every:
            if destination.free_at > now:
                pause = min(pause, destination.free_at - now)
                continue
            batch = None if size >= UNDER_WAY_BYTES else self._batch(destination)
            if batch is None:
                continue
            size += destination.size
            self._destinations[name] = self._destinations.pop(name)  # the others come first now
            destination.under_way = batch
            destination.free_at = now + ANSWER_SECONDS
            pause = min(pause, ANSWER_SECONDS)
            self.carrier.carry(destination.recipient, batch, self._hearing(destination, batch))
        return pause

    def _longest_pause(self) -> float:
        waits = any(self._outgoing(are_updates).number for are_updates in (False, True))
        return self.look_seconds() if waits else math.inf

    def _hearing(
        self, destination: _Destination, batch: HandOver
    ) -> Callable[[Marks | Exception], None]:
        def answered(answer: Marks | Exception) -> None:
            self._answers.append((destination, batch, answer))
            self.wake_up.set()

        return answered

    def _batch(self, destination: _Destination) -> HandOver | None:
        """Return the next batch of a destination; `None`: nothing waits for it."""
        if not destination.waiting and destination.unread:
            self._find_again(destination)
        channel, waiting = destination.channel, destination.waiting
        start, end = destination.recipient.start, destination.recipient.end
        outgoing = self._outgoing(channel.has_updates)
        entries: list[tuple[bytes, Any]] = []
        further: list[bytes] = []
        size = 0
        for position in list(waiting):
            stored = self.stored.get(outgoing.prefix + position)
            if stored is None:
                waiting.remove(position)  # it is handed over
                continue
            size += len(stored)
            is_full = len(entries) >= destination.entries_max or size > HANDED_OVER_BYTES_MAX
            if entries and is_full:
                break
            destination.size = size
            entry = outgoing.decode(stored)
            if channel.has_updates and not is_simple(entry.request):
                part = part_within(entry.request, start, end)
                if first_key(part) != first_key(entry.request):
                    further.append(position)
                entry = msgspec.structs.replace(entry, request=part)
            entries.append((position, entry))
        if not entries:
            return None
        batch = tuple(entries)
        if channel.has_updates:
            return HandOver(channel, start, end, updates=batch, further=tuple(further))
        return HandOver(channel, start, end, messages=batch)

    # --- reading

    def _read(self, are_updates: bool) -> bool:
        """Give further entries to their destinations; return whether there are more."""
        outgoing = self._outgoing(are_updates)
        if not outgoing.number:
            return False
        for number, (key, channel, recipients) in enumerate(
            self._entries(are_updates, self._read_up_to[are_updates]), 1
        ):
            for recipient in recipients:
                self._give(channel, recipient, key, key[len(outgoing.prefix) :])
            self._read_up_to[are_updates] = key + b"\x00"
            if number >= READ_AT_ONCE:
                return True
        return False

    def _give(self, channel: Channel, recipient: Recipient, key: bytes, position: bytes) -> None:
        """Give an entry to a destination, or note that it is to be found again later."""
        destination = self._destinations.get((channel, recipient))
        if destination is None:
            destination = _Destination(channel, recipient)
            self._destinations[channel, recipient] = destination
        if destination.unread:
            pass  # it is found again, in order
        elif len(destination.waiting) < KEPT:
            destination.waiting.append(position)
        else:
            destination.unread = key

    def _find_again(self, wanted: _Destination) -> None:
        """Find further entries of a destination, up to those that have been read.

        Others that have room get theirs on the way, from their first one that is missing. Else
        each entry would be read again for every destination.
        """
        are_updates, stop = wanted.channel.has_updates, b""
        prefix, end = self._outgoing(are_updates).prefix, self._read_up_to[are_updates]
        finding = {
            name: each
            for name, each in self._destinations.items()
            if each.unread
            and each.channel.has_updates == are_updates
            and len(each.waiting) <= KEPT // 2
        }
        begin = min(each.unread for each in finding.values())
        for key, channel, recipients in self._entries(are_updates, begin, end):
            if len(wanted.waiting) >= KEPT:
                stop = key
                break
            for recipient in recipients:
                each = finding.get((channel, recipient))
                if each is None or key < each.unread:
                    continue
                if len(each.waiting) < KEPT:
                    each.waiting.append(key[len(prefix) :])
                else:
                    each.unread = key
                    del finding[channel, recipient]
        for each in finding.values():
            if not stop or each.unread < stop:
                each.unread = stop

    def _entries(
        self, are_updates: bool, begin: bytes, end: bytes = b""
    ) -> Iterator[tuple[bytes, Channel, list[Recipient]]]:
        """Iterate over the engine keys of entries, with their channels and their ranges."""
        outgoing = self._outgoing(are_updates)
        end = end or keys.after_prefix(outgoing.prefix)
        for raw, stored in self.stored.iterate(begin, end):
            entry = outgoing.decode(stored)
            lane = 0 if are_updates else lane_of(entry.key)
            yield raw, Channel(self.range_id, are_updates, lane), self._recipients(entry)

    def _recipients(self, entry: Deliverable | Executable) -> list[Recipient]:
        """Return the ranges that an entry is for, in the order of their keys."""
        if isinstance(entry, Deliverable):
            return [self.carrier.recipient_of(entry.key)]
        if is_simple(entry.request):
            return [self.carrier.recipient_of(first_key(entry.request))]
        found: dict[Recipient, None] = {}
        for start, end in spans_of(entry.request):
            at: bytes | None = start
            while at is not None and (end is None or at < end):
                recipient = self.carrier.recipient_of(at)
                found[recipient] = None
                at = recipient.end
        return list(found)
