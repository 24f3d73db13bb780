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

Invariant: a batch begins with the first entry of its channel for the keys of its range, and has no
gap. Entries are read in order, each goes to the destination of its key, and the destinations of a
channel do not overlap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from postroom.errors import CommitUnknown, Retryable, TransactionTooLarge, Unavailable
from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.limits import HANDED_OVER_BYTES_MAX, HANDED_OVER_MAX
from postroom.messaging.handover.channels import Channel, lane_of
from postroom.messaging.handover.marks import Marks, mark_of
from postroom.messaging.handover.outgoing import Outgoing, key_of
from postroom.messaging.handover.requests import DropHandedOver, HandOver
from postroom.messaging.outbox import Outboxes
from postroom.messaging.requests import Deliverable, Executable
from postroom.messaging.services import CommitWakeUp
from postroom.ranges.carrier import Carrier, Recipient

READ_AT_ONCE: Final = 2048
"""The number of outgoing entries that a step of the service reads."""
KEPT: Final = 4096
"""The number of positions that a destination keeps."""
ANSWER_SECONDS: Final = 5.0
"""The time after which a batch without an answer is sent again."""
PAUSE_SECONDS_FIRST: Final = 0.05
PAUSE_SECONDS_LAST: Final = 5.0

Entry: TypeAlias = Deliverable | Executable


@dataclass(eq=False)
class _Destination:
    """A range, and the entries of a channel that wait for it.

    Attributes:
        channel, recipient: see :class:`Channel` and :class:`Recipient`.
        waiting: the positions of the first entries, in order.
        unread: the engine key from which further ones are to be found again; empty: there are none.
        under_way: the batch that is under way; `None`: there is none.
        free_at: when the next batch may leave, or the one under way is given up.
        entries_max: the number of entries in the next batch, at most.
        pause: the pause after the next failure.
    """

    channel: Channel
    recipient: Recipient
    waiting: deque[bytes] = field(default_factory=deque)
    unread: bytes = b""
    under_way: HandOver | None = None
    free_at: float = 0.0
    entries_max: int = field(default_factory=lambda: HANDED_OVER_MAX)
    pause: float = PAUSE_SECONDS_FIRST

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
        poll_seconds: how long a lost wake-up may go unnoticed.
    """

    range_id: int
    outboxes: Outboxes
    stored: Reader
    carrier: Carrier
    send: Callable[[Any], Awaitable[Any]]
    wake_up: CommitWakeUp
    monotonic: Callable[[], float]
    poll_seconds: float
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
            if isinstance(answer, Exception):
                continue
            taken[batch.channel.has_updates] += [
                position
                for position, entry in batch.updates or batch.messages
                if position <= mark_of(answer, key_of(entry))
            ]
        return taken

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
        pause = 0.0 if has_more else self.poll_seconds
        for destination in list(self._destinations.values()):
            if destination.free_at > now:
                pause = min(pause, destination.free_at - now)
                continue
            batch = self._batch(destination)
            if batch is None:
                continue
            destination.under_way = batch
            destination.free_at = now + ANSWER_SECONDS
            pause = min(pause, ANSWER_SECONDS)
            self.carrier.carry(destination.recipient, batch, self._hearing(destination, batch))
        return pause

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
        outgoing = self._outgoing(channel.has_updates)
        entries: list[tuple[bytes, Any]] = []
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
            entries.append((position, outgoing.decode(stored)))
        if not entries:
            return None
        _, start, end = destination.recipient
        batch = tuple(entries)
        if channel.has_updates:
            return HandOver(channel, start, end, updates=batch)
        return HandOver(channel, start, end, messages=batch)

    # --- reading

    def _read(self, are_updates: bool) -> bool:
        """Give further entries to their destinations; return whether there are more."""
        outgoing = self._outgoing(are_updates)
        if not outgoing.number:
            return False
        further = self._entries(are_updates, self._read_up_to[are_updates])
        for number, (key, channel, recipient) in enumerate(further, 1):
            destination = self._destinations.get((channel, recipient))
            if destination is None:
                destination = _Destination(channel, recipient)
                self._destinations[channel, recipient] = destination
            if destination.unread:
                pass  # it is found again, in order
            elif len(destination.waiting) < KEPT:
                destination.waiting.append(key[len(outgoing.prefix) :])
            else:
                destination.unread = key
            self._read_up_to[are_updates] = key + b"\x00"
            if number >= READ_AT_ONCE:
                return True
        return False

    def _find_again(self, destination: _Destination) -> None:
        """Find further entries of a destination, up to those that have been read."""
        are_updates = destination.channel.has_updates
        prefix, end = self._outgoing(are_updates).prefix, self._read_up_to[are_updates]
        begin, destination.unread = destination.unread, b""
        for key, channel, recipient in self._entries(are_updates, begin, end):
            if (channel, recipient) == (destination.channel, destination.recipient):
                if len(destination.waiting) >= KEPT:
                    destination.unread = key
                    return
                destination.waiting.append(key[len(prefix) :])

    def _entries(
        self, are_updates: bool, begin: bytes, end: bytes = b""
    ) -> Iterator[tuple[bytes, Channel, Recipient]]:
        """Iterate over the engine keys of entries, with their channels and their ranges."""
        outgoing = self._outgoing(are_updates)
        end = end or keys.after_prefix(outgoing.prefix)
        for raw, stored in self.stored.iterate(begin, end):
            key = key_of(outgoing.decode(stored))
            lane = 0 if are_updates else lane_of(key)
            channel = Channel(self.range_id, are_updates, lane)
            yield raw, channel, self.carrier.recipient_of(key)
