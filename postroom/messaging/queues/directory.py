"""The queues of a range by name: found, made, changed and dropped; and as they are stored.

The definitions are in memory, as applied. A manager is made when its queue is used or has something
to do. Managers at rest are forgotten when there are many. A proposal that changes a definition
reads the stored definitions from then on. Thus a queue can be made and used in one transaction.

A damaged queue (:mod:`.records`) has a name here and no manager; requests for it are told why. It
can be dropped.

The stored queues are read when a node begins to serve the range. An embedded store asks twice when
it is opened. First, whether anything is due; if not, it rests (:mod:`postroom.server.services`).
Second, what to plan. For that all definitions are read, and some keys of each queue (``survey``).
With a hundred thousand queues that takes half a second. Therefore the first answer is kept for the
second question. It is valid as long as nothing was applied in between.

The survey finds the due times of all stored queues. The index of the queues is read in leaps. Only
the first key of a subspace tells when something is due; the keys behind it are skipped. A queue
that has nothing stored costs nothing. A queue with many messages costs hardly more than one with
few.

::

    queue 1   scheduled ▲ · · ·   ready ⤳   leased ▲ ⤳   done ▲ ⤳   dead ⤳   ticks ▲ ▲
    queue 7   done ▲ ⤳
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from postroom.errors import Invalid
from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.messaging import due as times
from postroom.messaging.queues import periodic
from postroom.messaging.queues.definition_requests import (
    CreateQueue,
    DropQueue,
    QueueDefinition,
    QueueSettings,
    ToldQueue,
    UpdateQueue,
)
from postroom.messaging.queues.definitions import (
    NOBODY_KNOWS,
    Changed,
    Definitions,
    no_such_queue,
    retention,
)
from postroom.messaging.queues.learning import Learning
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.records import UNDECODABLE, QueueDamaged, index_in_use
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.ports import Registry
from postroom.ranges.state import APPLIED_RECORD

if TYPE_CHECKING:
    from postroom.messaging.queues.claiming import QueueEnvironment
    from postroom.messaging.queues.range_queues import RangeQueues

MANAGERS_KEPT: Final = 4096
"""The number of managers above which those at rest are forgotten."""

_log: Final = logging.getLogger(__name__)


class Directory:
    """The queues of a range by name.

    Args:
        range_id: the id of the range.
        host: the host that managers are given.
        environment: has the definitions that the node has heard of, and wakes the service.
        begin: a function that makes a manager from the stored state, or raises ``QueueDamaged``.
        on_dropped: called with the queue that is gone, and its manager if it was in use.

    Attributes:
        is_root: whether definitions are changed here.
        learning: what a range that is not the root has learned of them.
        definitions: the stored definitions.
        defined: the definitions of the sound queues, by name.
        by_name: the managers of the queues in use, by name.
        dropped: the managers of queues that are being emptied, by number.
        damaged: why queues are set aside, by name.
    """

    def __init__(
        self,
        range_id: int,
        host: RangeQueues,
        environment: QueueEnvironment,
        begin: Callable[[QueueDefinition], Manager],
        on_dropped: Callable[[QueueDefinition, Manager | None], None],
    ) -> None:
        self._range_id = range_id
        self.is_root = range_id == ROOT_ID
        self._applied_key = keys.record_key(range_id, APPLIED_RECORD)
        self._news, self._wake_up = environment.news, environment.wake
        self.learning = Learning(range_id, environment)
        self._host = host
        self._begin = begin
        self._on_dropped = on_dropped
        self.definitions = Definitions(range_id)
        self.defined: dict[str, QueueDefinition] = {}
        self.by_name: dict[str, Manager] = {}
        self.dropped: dict[int, Manager] = {}
        self.damaged: dict[str, str] = {}
        self._set_aside: dict[str, QueueDefinition] = {}
        self._logged: set[str] = set()
        self._reordered: list[Manager] = []
        self._last: Stored | None = None
        self._forget_above = MANAGERS_KEPT

    def register(self, registry: Registry) -> None:
        """Register the writes that change definitions."""
        registry.writes |= {
            CreateQueue: self._create,
            UpdateQueue: self._update,
            DropQueue: self._drop,
        }

    def known(self, name: str) -> Manager:
        """Return the manager of a queue, as applied.

        Raises:
            Invalid: there is no such queue.
            QueueDamaged: it is set aside.
            MustWait: the range has yet to learn of it.
        """
        manager = self.manager(name) if self.learning.knows else None
        if manager is None:
            self.learning.wait()
            self._check_not_damaged(name, None)
            raise no_such_queue(name)
        return manager

    def in_use(self, name: str) -> Manager | None:
        """Return the manager of a queue, if ``find`` needs only look it up."""
        return self.by_name.get(name) if self.learning.knows and not self._reordered else None

    def manager(self, name: str) -> Manager | None:
        """Return the manager of a queue, as applied, or `None` if it is unknown or damaged."""
        manager = self.by_name.get(name)
        if manager is not None:
            manager.was_asked_for = True
            return manager
        definition = self.defined.get(name)
        if definition is None:
            return None
        try:
            manager = self._begin(definition)
        except QueueDamaged as error:
            self.set_aside(error, definition)
            return None
        self.is_sound(name)
        if self.has_too_many:
            self._wake_up()
        return manager

    @property
    def has_too_many(self) -> bool:
        """Return whether managers are to be forgotten."""
        return len(self.by_name) > self._forget_above

    def forget_some(self, noted: set[Manager]) -> None:
        """Forget managers at rest that were not asked for since the last time.

        Args:
            noted: the managers that the proposal under evaluation changes.
        """
        for name, manager in list(self.by_name.items()):
            if len(self.by_name) <= MANAGERS_KEPT - MANAGERS_KEPT // 8:
                break
            if not manager.was_asked_for and manager.is_at_rest and manager not in noted:
                del self.by_name[name]
            manager.was_asked_for = False
        self._forget_above = max(len(self.by_name) + MANAGERS_KEPT // 8, MANAGERS_KEPT)

    def all(self) -> list[QueueDefinition]:
        """Return the definitions of all queues, as applied; of damaged ones, what is known."""
        found: list[QueueDefinition] = list(self.defined.values())
        for name, why in self.damaged.items():
            known = self._set_aside.get(name) or QueueDefinition(name, 0, 0, NOBODY_KNOWS)
            found.append(
                ToldQueue(
                    name, known.number, known.created_at, known.settings, known.paused, damaged=why
                )
            )
        return found

    # --- stored queues

    def read_stored(self, reader: Reader, wall: int) -> Stored:
        """Read the stored queues, and keep the answer for :meth:`take_stored`.

        Args:
            reader: the stored state.
            wall: now, by the trusted wall clock.
        """
        defined, dropped, unreadable = self._read_definitions(reader)
        applied = self._applied(reader)
        self._last = found = Stored(applied, wall, defined, dropped, unreadable, {}, {}, [])
        by_number = {each.number: each for each in defined.values()}
        for seen in survey(reader, self._range_id, wall):
            definition = by_number.get(seen.number)
            if definition is None:
                continue
            name, purge_at = definition.name, 0
            if seen.done_at:
                purge_at = seen.done_at + retention(definition.settings, self._host.kept())
            if timestamp := times.earliest(seen.first_due, purge_at, seen.results_until):
                found.by_timestamp[name] = timestamp
            if moment := times.earliest(seen.first_moment, seen.next_tick):
                found.by_wall[name] = moment
            if seen.has_leases:
                found.held.append(name)
        return found

    def take_stored(self, reader: Reader, wall: int) -> Stored:
        """Return the last answer if nothing was applied since, else read again."""
        last = self._last
        if last is None or last.applied != self._applied(reader):
            last = self.read_stored(reader, wall)
        self._last = None
        return last

    def _applied(self, reader: Reader) -> tuple[bytes | None, int]:
        """Return what tells whether something was applied that is read here."""
        return reader.get(self._applied_key), self._news.version

    def _read_definitions(
        self, reader: Reader
    ) -> tuple[dict[str, QueueDefinition], list[QueueDefinition], list[QueueDamaged]]:
        """Return the definitions by name, the dropped queues that are not empty here, and errors.

        They are those of the store at the root. Another range has what its node has heard of.
        """
        if not self.is_root:
            news = self._news
            return dict(news.by_name), self.dropped_here(reader), [*news.unreadable.values()]
        known, unreadable = self.definitions.read_all(reader)
        dropped = [each for each in known if each.dropped]
        return {each.name: each for each in known if not each.dropped}, dropped, unreadable

    def dropped_here(self, reader: Reader) -> list[QueueDefinition]:
        """Return the queues that have counters or slots in this range, and were dropped."""
        news, prefix = self._news, keys.queue_counters_prefix(self._range_id, self._host.index)
        if news.unreadable:
            return []  # each of the numbers may be one of theirs
        there = {each.number for each in (*news.by_name.values(), *self.defined.values())}
        numbers = {
            *(
                int(key[len(prefix) :])
                for key, _ in reader.iterate(prefix, keys.after_prefix(prefix))
            ),
            *self._host.slots.owners(reader),
        }
        return [
            QueueDefinition(f"number {number}", number, 0, NOBODY_KNOWS, dropped=True)
            for number in sorted(numbers)
            if number not in there and number <= news.highest
        ]

    # --- definitions that have changed at the root

    def take(
        self, name: str, definition: QueueDefinition | None, unreadable: QueueDamaged | None
    ) -> None:
        """Take what the range has learned to be defined under a name.

        Args:
            name: the name.
            definition: the queue, as it is defined now; ``None``: there is none, or it is damaged.
            unreadable: why its definition cannot be read.
        """
        known = self.defined.get(name) or self._set_aside.get(name)
        if known is not None and known == definition:
            return
        if unreadable is not None:
            self.set_aside(unreadable, known)
        elif known is not None and definition is not None and known.number == definition.number:
            self._changed(definition)
        else:
            if known is not None:
                self._has_dropped(name, [msgspec.structs.replace(known, dropped=True)])
            elif self.damaged.pop(name, None) is not None:
                self._host.find_dropped()  # its number was not known
            if definition is not None:
                self.defined[name] = definition  # nothing of it is stored here

    # --- damaged queues

    def clear(self) -> None:
        """Forget all queues, at the end of the lease."""
        self.defined.clear()
        self.by_name.clear()
        self.dropped.clear()
        self.damaged.clear()
        self._set_aside.clear()

    def set_aside(self, error: QueueDamaged, definition: QueueDefinition | None) -> None:
        """Set a queue aside for as long as this lease of the range lasts; log that once.

        Args:
            error: the error, with the name of the queue.
            definition: its definition, if it is known.
        """
        name = error.queue
        self.damaged[name] = str(error)
        self.defined.pop(name, None)
        self.by_name.pop(name, None)
        if definition is not None:
            self._set_aside[name] = definition
        if name not in self._logged:
            self._logged.add(name)
            _log.error("a queue is set aside: %s", error)

    def is_sound(self, name: str) -> None:
        """Note that a queue is sound, or gone: damage found later is logged again."""
        self._logged.discard(name)

    def find(self, ctx: Evaluation, name: str) -> tuple[Manager, QueueSettings]:
        """Return the manager and settings of a queue, as the requests before have left it.

        Raises:
            Invalid: there is no such queue.
            QueueDamaged: it is set aside.
            Unavailable: the range has yet to learn of it.
        """
        found = self.find_if_there(ctx, name)
        if found is None:
            self.learning.check_news()
            raise no_such_queue(name)
        return found

    def find_if_there(self, ctx: Evaluation, name: str) -> tuple[Manager, QueueSettings] | None:
        """Return the manager and settings of a queue, or `None` if there is none.

        Raises:
            QueueDamaged: it is set aside.
            Unavailable: the range has yet to learn of it.
        """
        self.learning.check()
        made = ctx.scratch.get(Changed)
        if made is None:
            # They were reordered by a proposal that never came about, or is applied now.
            for reordered in self._reordered:
                reordered.order_by(reordered.definition.settings)
            self._reordered.clear()
            manager = self.manager(name)
            if manager is None:
                self._check_not_damaged(name, None)
                return None
            return manager, manager.definition.settings
        definition = self.definitions.read(ctx, name)
        if definition is None:
            return None
        self._check_not_damaged(name, definition)
        manager = self.manager(name)
        if manager is None or manager.definition.number != definition.number:
            manager = made[definition.number]
        if manager.ordered != (definition.settings.order == "group"):
            manager.order_by(definition.settings)
            self._reordered.append(manager)
        return manager, definition.settings

    def stands(self, name: str, number: int) -> bool:
        """Return whether a queue has not been dropped, be it damaged or not.

        Raises:
            Unavailable: the range has yet to learn of it.
        """
        self.learning.check()
        known = self.defined.get(name) or self._set_aside.get(name)
        if known is None and name in self.damaged:
            return True  # its number is unknown
        if known is not None and known.number == number:
            return True
        self.learning.check_number(number)
        return False

    def _check_not_damaged(self, name: str, definition: QueueDefinition | None) -> None:
        why, known = self.damaged.get(name), self._set_aside.get(name)
        if why is None:
            return
        if definition is None or (known is not None and known.number == definition.number):
            raise QueueDamaged(name, why)
        # Otherwise it was dropped and made again in the same proposal.

    def _changes(self, ctx: Evaluation) -> dict[int, Manager]:
        """Return the managers made by this evaluation, by number; it reads the store from now on.

        One transaction may make several. A queue that was refused leaves its number to the next.
        """
        made: dict[int, Manager] = ctx.scratch.setdefault(Changed, {})
        return made

    def _create(self, ctx: Evaluation, request: CreateQueue) -> None:
        self.check_root(f"the queue {request.name!r} was not made")
        definition = self.definitions.create(ctx, request)
        if definition is None:
            self._check_not_damaged(request.name, self.definitions.read(ctx, request.name))
            return
        self._count_slots(ctx, definition)
        manager = Manager(self._range_id, definition, self._host)
        manager.ready.nothing_is_stored()
        self._changes(ctx)[definition.number] = manager
        ctx.after.append(lambda: self._has_made(definition, manager))

    def _has_made(self, definition: QueueDefinition, manager: Manager) -> None:
        self.defined[definition.name] = definition
        self.by_name[definition.name] = manager
        # Notes of the same proposal took effect before it had a name to be planned by.
        self._host.steps.wake_by(manager, self._host.monotonic())

    def _update(self, ctx: Evaluation, request: UpdateQueue) -> None:
        self.check_root(f"the queue {request.name!r} was not changed")
        manager, before = self.find(ctx, request.name)
        definition = self.definitions.update(ctx, request)
        is_empty = not (manager.counted.live or any(note[0] is manager for note in ctx.notes))
        if definition.settings.order != before.order and not is_empty:
            raise Invalid(
                f"the queue {request.name!r} was not changed: its order can change only while no "
                "message is scheduled, ready or leased"
            )
        if definition.settings.order != before.order and not self._host.bounds.is_whole:
            raise Invalid(
                f"the queue {request.name!r} was not changed: its order can change only in a store "
                "of one range: make another queue"
            )
        self._count_slots(ctx, definition)
        self._changes(ctx)
        ctx.after.append(lambda: self._changed(definition))

    def _count_slots(self, ctx: Evaluation, definition: QueueDefinition) -> None:
        """Count the slots of a queue in a store of several ranges."""
        if not self._host.bounds.is_whole:
            self._host.pools.change(ctx, definition.number, definition.settings)

    def _changed(self, definition: QueueDefinition) -> None:
        manager, known = self.manager(definition.name), self._set_aside.get(definition.name)
        if known is not None and known.number == definition.number:
            self._set_aside[definition.name] = definition
        if manager is not None and manager.definition.number == definition.number:
            self.defined[definition.name] = definition
            manager.change(definition)

    def _drop(self, ctx: Evaluation, request: DropQueue) -> None:
        self.check_root(f"the queue {request.name!r} was not dropped")
        known = self.defined.get(request.name) or self._set_aside.get(request.name)
        is_alone = self._host.bounds.is_whole
        dropped = self.definitions.drop(ctx, request, known, is_alone=is_alone)
        self._changes(ctx)
        ctx.after.append(lambda: self._has_dropped(request.name, dropped))
        if not is_alone:
            ctx.after.append(self._host.tell_drops)

    def check_root(self, nothing: str) -> None:
        """Check that this is the root, which has all definitions and periodic schedules.

        Raises:
            Invalid: it is not, and ``nothing`` was changed.
        """
        if not (self.is_root or self._host.bounds.is_whole):
            raise Invalid(
                f"{nothing}: a store of several ranges changes queues in their first one: do that "
                "in a transaction of its own"
            )

    def _has_dropped(self, name: str, dropped: list[QueueDefinition]) -> None:
        is_damaged = self.damaged.pop(name, None) is not None
        if is_damaged:
            self._set_aside.pop(name, None)
            self._logged.discard(name)
        for definition in dropped:
            known = self.defined.get(name)
            if not is_damaged and (known is None or known.number != definition.number):
                return
            in_use = None if is_damaged else self.by_name.pop(name, None)
            self.defined.pop(name, None)
            manager = in_use or Manager(self._range_id, definition, self._host)
            # A damaged record may name messages that it should not.
            manager.names_all = not is_damaged
            manager.definition = definition
            self.dropped[definition.number] = manager
            self._on_dropped(definition, in_use)


PASSED_AT_ONCE: Final = 8
"""The number of keys that are read in a row before the others are skipped."""
_NUMBER_BYTES: Final = 4
_MOMENTS: Final = keys.u64(times.MOMENT)
_AFTER: Final = {
    keys.SCHEDULED: keys.LEASED,
    keys.READY: keys.LEASED,
    keys.LEASED: keys.DONE,
    keys.DONE: keys.TICKS,
    keys.ARCHIVED: keys.TICKS,
    keys.DEAD: keys.TICKS,
    keys.GROUPS: keys.TICKS,
    keys.TICKS: keys.TICKS,
    keys.EXPIRING: keys.QUEUE_END,
}
"""The subspace to read next, by subspace."""


@dataclass(slots=True)
class Seen:
    """The due times that are stored of a queue.

    Attributes:
        number: the number under which it is stored.
        first_due: the timestamp of its first message scheduled for a timestamp; 0: there is none.
        first_moment: the same for a moment, by the wall clock; 0: there is none.
        done_at: the timestamp of the first list of done messages; 0: there is none.
        next_tick: its next tick, by the wall clock; 0: there is none.
        results_until: the timestamp at which its first result goes; 0: there is none.
        has_leases: whether messages of it are leased.
    """

    number: int
    first_due: int = 0
    first_moment: int = 0
    done_at: int = 0
    next_tick: int = 0
    results_until: int = 0
    has_leases: bool = False


def survey(stored: Reader, range_id: int, wall: int) -> Iterator[Seen]:
    """Iterate over the queues that have anything stored, in the order of their numbers.

    Args:
        stored: the stored state.
        range_id: the id of the range.
        wall: now, by the wall clock.
    """
    index = index_in_use(stored, range_id)
    begins = len(keys.queue_prefix(range_id, 0)) - _NUMBER_BYTES
    end = keys.after_prefix(keys.queue_prefix(range_id, 0, index)[:begins])
    size, seen = begins + _NUMBER_BYTES, Seen(0)
    after = _AFTER.get
    cursor: bytes | None = keys.queue_prefix(range_id, 1, index)
    while cursor is not None:
        wanted, cursor, passed = cursor, None, 0
        for key, packed in stored.iterate(wanted, end):
            if key < wanted:
                passed += 1
                if passed > PASSED_AT_ONCE:
                    cursor = wanted
                    break
                continue
            passed = 0
            number = int.from_bytes(key[begins:size], "big")
            if seen.number != number:
                if seen.number:
                    yield seen
                seen = Seen(number)
            subspace = key[size : size + 1]
            _note(seen, subspace, key[size + 1 :], packed, wall)
            wanted = key[:size] + after(subspace, keys.TICKS)
            if subspace == keys.SCHEDULED and not seen.first_moment:
                wanted = key[: size + 1] + _MOMENTS
    if seen.number:
        yield seen


def _note(seen: Seen, subspace: bytes, rest: bytes, packed: bytes, wall: int) -> None:
    if subspace == keys.SCHEDULED and rest >= _MOMENTS:
        seen.first_moment = times.shown(int.from_bytes(rest[:8], "big"))
    elif subspace == keys.SCHEDULED:
        seen.first_due = int.from_bytes(rest[:8], "big")
    elif subspace == keys.LEASED:
        seen.has_leases = True
    elif subspace == keys.DONE:
        seen.done_at = int.from_bytes(rest[:8], "big")
    elif subspace == keys.EXPIRING:
        seen.results_until = int.from_bytes(rest[:8], "big")
    elif subspace == keys.TICKS:
        try:
            tick = periodic.next_of(packed, wall)
        except UNDECODABLE:
            tick = 1  # the next load of the queue finds the damage
        if tick:
            seen.next_tick = min(seen.next_tick or tick, tick)


class Stored(NamedTuple):
    """The stored queues of a range.

    Attributes:
        applied: the applied record, and the version of the definitions, at which they were read.
        wall: when they were read, by the trusted wall clock.
        defined: the definitions of the queues, by name.
        dropped: the definitions of queues that are being emptied.
        unreadable: the errors of definitions that cannot be read.
        by_timestamp: the timestamp at which something is due in a queue, by name.
        by_wall: the same by the wall clock.
        held: the queues with leased messages.
    """

    applied: tuple[bytes | None, int]
    wall: int
    defined: dict[str, QueueDefinition]
    dropped: list[QueueDefinition]
    unreadable: list[QueueDamaged]
    by_timestamp: dict[str, int]
    by_wall: dict[str, int]
    held: list[str]
