"""The reads of queues: definitions, messages by id, pages of messages by state, and statistics.

Live messages are listed by state: scheduled, ready, leased. The state as of an earlier timestamp is
not known any more, but the messages live then are: ``created_at <= timestamp < done_at``. The past
is read from the bodies, in the order of their homes. Thus pages fit together
whatever happens between them. Messages that were done or archived by then are in the lists of what
each proposal has ended, in the order of their ends. Reading the new ones takes time only for them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final, NamedTuple, TypeAlias

import msgspec

from postroom.errors import Invalid
from postroom.kv import keys
from postroom.kv.clock import LOGICAL_BITS
from postroom.limits import LIST_MAX, QUEUES_PER_STEP, READ_BYTES_MAX
from postroom.messaging import due as times
from postroom.messaging.queues import periodic, records
from postroom.messaging.queues.claim_requests import EVERY_HOME, HomeSpan, StoredQueueMessage
from postroom.messaging.queues.definition_requests import QueueDefinition, SetSchedule
from postroom.messaging.queues.enqueueing import is_gone
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.places import find_unheld, locators, read_body, read_state
from postroom.messaging.queues.queries import (
    FindHomes,
    FindRangeStarts,
    FoundHome,
    ListQueueMessages,
    QueuePage,
    QueueStats,
    ReadQueueMessage,
    ReadQueues,
    ReadQueueStats,
    ReadSchedules,
)
from postroom.messaging.queues.records import (
    UNDECODABLE,
    Body,
    Ended,
    Entry,
    Locator,
    MessageState,
    damaged,
    decoded,
)
from postroom.ranges.bounds import Bounds
from postroom.ranges.evaluation import View
from postroom.ranges.ports import Registry

_STATUS: Final = {
    records.DONE: "done",
    records.ARCHIVED: "archived",
    records.DEAD: "dead",
    records.CANCELLED: "cancelled",
    records.MOVED: "dead",
}
_LIVE: Final = ("scheduled", "ready", "leased")
PASSED_AT_ONCE: Final = 8
"""The number of keys other than bodies that are read in a row before they are skipped."""
STATES: Final = ("", *_LIVE, "done", "archived", "dead")


_When: TypeAlias = tuple[int, int, int, int]
"""The due time of a message, its epoch, when its lease ends, and when it was fired."""
_NEVER: Final[_When] = (0, 0, 0, 0)


class _Found(NamedTuple):
    """A message that was found in a subspace, and the token after which the next page begins."""

    token: bytes
    locator: Locator
    seq: bytes
    state: str
    when: _When
    has_failed: bool


@dataclass(eq=False)
class Reading:
    """The reads of the queues of one range.

    Attributes:
        find: a function that returns the manager of a queue, or raises ``Invalid``.
        all_queues: the definitions of all queues, the damaged ones included.
        check_age: a function that refuses a timestamp that cannot be read at.
        bounds: the bounds of the range.
    """

    find: Callable[[str], Manager]
    all_queues: Callable[[], list[QueueDefinition]]
    check_age: Callable[[View, int], None]
    bounds: Bounds

    def register(self, registry: Registry) -> None:
        """Register the reads."""
        registry.reads |= {
            ReadQueues: self.read_queues,
            ReadQueueMessage: self.read_message,
            FindHomes: self.find_homes,
            FindRangeStarts: self.find_range_starts,
            ListQueueMessages: self.list_messages,
            ReadQueueStats: self.read_stats,
            ReadSchedules: self.read_schedules,
        }

    def read_queues(self, view: View, request: ReadQueues) -> list[QueueDefinition]:
        """Evaluate ``ReadQueues``.

        Raises:
            Invalid: there is no queue of that name.
        """
        if request.name:
            return [self.find(request.name).definition]
        every = self.all_queues()
        view.steps += len(every) // QUEUES_PER_STEP
        found = (each for each in every if each.name > request.after)
        return nsmallest(request.queues_max or len(every), found, key=lambda each: each.name)

    def read_schedules(self, view: View, request: ReadSchedules) -> list[SetSchedule]:
        """Evaluate ``ReadSchedules``."""
        manager = self.find(request.queue)
        schedules = periodic.read_all(view, manager)
        view.steps += len(schedules)
        return [schedule.request for schedule in schedules]

    # --- one message

    def read_message(self, view: View, request: ReadQueueMessage) -> list[StoredQueueMessage]:
        """Evaluate ``ReadQueueMessage``."""
        manager = self.find(request.queue)
        found = []
        for locator in locators(view, manager, request.id, request.kind, home=request.home):
            view.steps += 4
            if not self.bounds.contains(locator[0]):
                continue
            message = self._message_now(view, manager, locator, gone=request.gone)
            if message is not None:
                found.append(message)
        return found

    def find_homes(self, view: View, request: FindHomes) -> list[FoundHome]:
        """Evaluate ``FindHomes``."""
        manager = self.find(request.queue)
        view.steps += 4 * (len(request.ids) + len(request.found))
        found = [
            FoundHome(*locator)
            for id_ in request.ids
            for locator in locators(view, manager, id_, request.kind)
        ]
        return found + [
            each
            for each in request.found
            if read_body(view, manager, (each.home, each.kind, each.id)) is not None
        ]

    def find_range_starts(self, _: View, request: FindRangeStarts) -> list[bytes]:
        """Evaluate ``FindRangeStarts``."""
        self.find(request.queue)
        return [self.bounds.start]

    def _message_now(
        self, view: View, manager: Manager, locator: Locator, *, gone: bool
    ) -> StoredQueueMessage | None:
        body = read_body(view, manager, locator)
        if body is None:
            return None
        state = read_state(view, manager, locator)
        if not gone and is_gone(state, manager.definition.settings, view.now):
            return None
        lease = manager.leases.get(locator)
        if lease is not None and lease.entry.seq == body.seq:
            entry = lease.entry
            when = (entry.due, entry.epoch, lease.until, lease.fired_at)
            return _message(locator, body, state, "leased", when)
        if state is not None and state.status != records.LIVE:
            said = _STATUS[state.status]
            return _message(locator, body, state, said, (state.due, state.epoch, 0, state.fired))
        place = find_unheld(view, manager, locator, body)
        if place is None:
            return None
        entry = place.entry
        due = max(times.shown(entry.due), times.shown(entry.not_before))
        return _message(locator, body, state, place.where, (due, entry.epoch, 0, 0))

    # --- pages

    def list_messages(
        self, view: View, request: ListQueueMessages
    ) -> Generator[None, None, QueuePage]:
        """Evaluate ``ListQueueMessages``, over as many turns as it takes.

        Raises:
            Invalid: there is no such queue, or no such state.
            SnapshotTooOld: the timestamp has been collected.
        """
        if request.state not in STATES:
            raise Invalid(
                f"there is no state {request.state!r}: states are {', '.join(STATES[1:])}"
            )
        manager = self.find(request.queue)
        if request.timestamp:
            if not _IS_LIST.get(request.state):
                return (yield from self._list_then(view, manager, request))
            self.check_age(view, request.timestamp)
        messages_max = min(request.messages_max, LIST_MAX)
        bytes_max = min(request.bytes_max, READ_BYTES_MAX)
        page: list[StoredQueueMessage] = []
        tokens = list[bytes]()
        size, last = 0, request.after
        for found in self._walk(view, manager, request):
            view.steps += 2
            message = None
            if _lies_in(request.homes, found.locator[0]):
                message = self._filled(view, manager, found, request.timestamp)
            if message is not None and _is_within(message, request):
                size += len(message.payload)
                if len(page) >= messages_max or (page and size > bytes_max):
                    return QueuePage(page, last, tokens)
                page.append(message)
                if request.with_tokens:
                    tokens.append(found.token)
            last = found.token
            if view.is_used_up():
                return QueuePage(page, last, tokens)  # the next page goes on
        yield from ()
        return QueuePage(page, tokens=tokens)

    def _walk(self, view: View, manager: Manager, request: ListQueueMessages) -> Iterator[_Found]:
        states = [request.state] if request.state else list(_LIVE)
        after = request.after
        for state in states:
            prefix = manager.layout.whole + _SUBSPACES[state]
            if after and after[:1] > _SUBSPACES[state]:
                continue
            lower = prefix
            if after[:1] == _SUBSPACES[state]:
                lower = (
                    manager.layout.whole + after[:-4]
                    if _IS_LIST[state]
                    else (manager.layout.whole + after + b"\x00")
                )
            elif _IS_LIST[state] and request.start:
                lower = prefix + keys.u64(request.start)  # a list is as old as its last message
            for key, packed in view.iterate(lower, keys.after_prefix(prefix)):
                token = key[len(manager.layout.whole) :]
                yield from _found(manager, state, key, packed, token, after)

    def _filled(
        self, view: View, manager: Manager, found: _Found, at: int
    ) -> StoredQueueMessage | None:
        """Read the whole of a message that was found; `None`: it is not in that state any more.

        If ``at`` is not 0, its state is that at this timestamp.
        """
        body = read_body(view, manager, found.locator)
        if body is None or body.seq != found.seq:
            return None
        state = None
        if found.has_failed or found.state not in _LIVE:
            state = read_state(view, manager, found.locator)
        if found.state not in _LIVE:
            if state is None or _STATUS.get(state.status) != found.state:
                return None
            if at and not _was_kept(state, manager.retention, at):
                return None
            if not at and is_gone(state, manager.definition.settings, view.now):
                return None
            when = (state.due, state.epoch, 0, state.fired)
            return _message(found.locator, body, state, found.state, when)
        return _message(found.locator, body, state, found.state, found.when)

    # --- the past

    def _list_then(
        self, view: View, manager: Manager, request: ListQueueMessages
    ) -> Generator[None, None, QueuePage]:
        at = request.timestamp
        self.check_age(view, at)
        if request.state in _LIVE:
            raise Invalid(
                f"the messages that were {request.state} at a timestamp are not known: ask for all "
                'that lived (state=""), or for those that were done, archived or dead'
            )
        messages_max = min(request.messages_max, LIST_MAX)
        bytes_max = min(request.bytes_max, READ_BYTES_MAX)
        page: list[StoredQueueMessage] = []
        tokens = list[bytes]()
        size, last = 0, request.after
        span = keys.data_span(*self.bounds.clip(*(request.homes or EVERY_HOME)))
        if request.after:
            span = span._replace(lower=max(span.lower, keys.DATA + request.after + b"\x00"))
        for found in _bodies(view, manager.layout.number, span):
            if found is None:
                yield
                self.check_age(view, at)
                continue
            message = self._as_of(view, manager, *found, at)
            if message is not None and _was(message, request, at):
                size += len(message.payload)
                if len(page) >= messages_max or (page and size > bytes_max):
                    return QueuePage(page, last, tokens)
                page.append(message)
                last = found[0][1:]
                if request.with_tokens:
                    tokens.append(last)
        return QueuePage(page, tokens=tokens)

    def _as_of(
        self, view: View, manager: Manager, key: bytes, packed: bytes, at: int
    ) -> StoredQueueMessage | None:
        """Return the message of a body as of a timestamp, or `None` if it did not exist then."""
        end = key.index(keys.END_OF_KEY, 1) + 2
        body = decoded(records.bodies, packed, manager.name)
        if body.created_at > at:
            return None
        kind, _, id_ = key[end + 5 :].partition(keys.END_OF_KEY)
        locator = (keys.user_key(key), keys.unescape(kind).decode(), id_)
        state = read_state(view, manager, locator)
        due, epoch = (body.first, 0) if state is None else (state.due, state.epoch)
        if state is None or not 0 < state.at <= at:
            said, fired = "scheduled" if times.shown(due) > at else "ready", 0
            lease = manager.leases.get(locator)
            if lease is not None and lease.fired_at <= at:
                said, fired = "leased", lease.fired_at
            # Otherwise the message has ended since, which was unknown at that timestamp.
            lives = state is None or not state.at
            return _message(locator, body, state if lives else None, said, (due, epoch, 0, fired))
        when = (state.due, state.epoch, 0, state.fired)
        return _message(locator, body, state, _STATUS[state.status], when)

    # --- statistics

    def read_stats(self, view: View, request: ReadQueueStats) -> QueueStats:
        """Evaluate ``ReadQueueStats``."""
        manager = self.find(request.queue)
        counted = msgspec.structs.asdict(manager.counted)
        del counted["moved"]
        lateness = sorted(manager.lateness)
        oldest, now = _oldest(view, manager), manager.host.monotonic()
        longest, holders = manager.leases.longest(), manager.leases.consumers
        view.steps += (len(manager.ready) + len(manager.leases)) // 16
        return QueueStats(
            **counted,
            consumers=len(manager.consumers.ids() | holders),
            oldest=oldest,
            lateness_p50=_quantile(lateness, 0.5),
            lateness_p99=_quantile(lateness, 0.99),
            oldest_age=max(view.now - oldest >> LOGICAL_BITS, 0) / 1000 if oldest else None,
            failures=manager.trouble.failures(now),
            trouble=manager.trouble.why(now),
            longest_held=None if longest is None else longest.told(view.now),
        )


_SUBSPACES: Final = {
    "scheduled": keys.SCHEDULED,
    "ready": keys.READY,
    "leased": keys.LEASED,
    "done": keys.DONE,
    "archived": keys.ARCHIVED,
    "dead": keys.DEAD,
}
_ENDED: Final = {"done", "archived"}
_IS_LIST: Final = {state: state in {*_ENDED, "leased"} for state in _SUBSPACES}


def _bodies(view: View, queue: bytes, span: keys.KeySpan) -> Iterator[tuple[bytes, bytes] | None]:
    """Iterate over the bodies of a queue's messages in a span of engine keys, with these keys.

    ``None`` means that the turn is used up. Other records under the same keys, such as versions,
    are skipped.
    """
    onward: bytes | None = span.lower
    while onward is not None:
        cursor, onward, passed = onward, None, 0
        for key, packed in view.iterate(cursor, span.upper):
            view.steps += 1
            end = key.index(keys.END_OF_KEY, 1) + 2
            own = key[:end] + keys.QUEUE_BODY + queue
            passed += 1
            if key.startswith(own):
                passed = 0
                yield key, packed
            if view.is_used_up():
                onward = key + b"\x00"
                yield None
                break
            if passed > PASSED_AT_ONCE:
                onward = own if key < own else key[:end] + keys.SUFFIX_END
                break


def _found(
    manager: Manager, state: str, key: bytes, packed: bytes, token: bytes, after: bytes
) -> Iterator[_Found]:
    """Iterate over the messages of a stored key; in a list, those behind ``after``."""
    if state in _ENDED:
        ended: list[Ended] = decoded(records.ended_lists, packed, manager.name)
        first = _first(token, after)
        for number, each in enumerate(ended[first:], first):
            locator = (each.home, each.kind, each.id)
            yield _Found(token + keys.u32(number), locator, each.seq, state, _NEVER, True)
    elif state == "leased":
        if not manager.layout.is_mark(key):
            yield from _held(manager, key, packed, token, after)
    else:
        entry: Entry = decoded(records.entries, packed, manager.name)
        due = max(times.shown(entry.due), times.shown(entry.not_before))
        when = (due, entry.epoch, 0, 0)
        yield _Found(token, entry.locator, entry.seq, state, when, entry.has_failed)


def _first(token: bytes, after: bytes) -> int:
    """Return the number of the first message behind ``after`` in the list of this token."""
    return int.from_bytes(after[-4:], "big") + 1 if after[:-4] == token else 0


def _held(
    manager: Manager, key: bytes, packed: bytes, token: bytes, after: bytes
) -> Iterator[_Found]:
    """Iterate over the messages of a holding that are still leased."""
    try:
        holding, first = records.holdings.decode(packed), _first(token, after)
    except UNDECODABLE as error:
        raise damaged(manager.name, "a stored holding", error) from error
    for number, held in enumerate(holding.entries[first:], first):
        lease = manager.leases.get(held.locator)
        if lease is not None and lease.holding.key == key:
            when = (held.due, held.epoch, holding.until, holding.fired_at)
            name = token + keys.u32(number)
            yield _Found(name, held.locator, held.seq, "leased", when, held.has_failed)


def _message(
    locator: Locator, body: Body, state: MessageState | None, said: str, when: _When
) -> StoredQueueMessage:
    due, epoch, until, fired = when
    due, first = times.shown(due), times.shown(body.first)
    done_at, error = (0, "") if state is None else (state.at, state.error)
    return StoredQueueMessage(
        body.key_of(locator), *locator[1:], body.payload, body.headers, body.priority, body.group,
        body.created_at, first, due, epoch, until, error, said, done_at, fired,
    )  # fmt: skip


def _lies_in(homes: HomeSpan | None, home: bytes) -> bool:
    return homes is None or (homes[0] <= home and (homes[1] is None or home < homes[1]))


def _is_within(message: StoredQueueMessage, request: ListQueueMessages) -> bool:
    timestamp = message.done_at or message.scheduled
    return timestamp >= request.start and (not request.end or timestamp < request.end)


def _was_kept(state: MessageState, retention: int, at: int) -> bool:
    """Return whether a message that has ended by now had ended at a timestamp and was kept then.

    A message that was to be purged by then is not returned: it may go between two reads.
    """
    is_purged = state.status == records.DONE and state.at + retention <= at
    return state.at <= at and not is_purged


def _was(message: StoredQueueMessage, request: ListQueueMessages, at: int) -> bool:
    """Return whether a message was in the requested state at a timestamp."""
    has_ended = 0 < message.done_at <= at
    if has_ended != bool(request.state):
        return False
    if has_ended and message.state != request.state:
        return False
    return _is_within(message, request)


def _oldest(view: View, manager: Manager) -> int:
    """Return when the oldest ready or leased message became due; 0: there is none."""
    by_wall = manager.host.by_wall
    dues = [times.passed(each.entry.due, view.now, by_wall) for each in manager.leases.all()]
    return times.earliest(*dues, _oldest_ready(view, manager))


def _oldest_ready(view: View, manager: Manager) -> int:
    """Return when the oldest ready message became due; 0: none is ready.

    If some are in memory, only these count.
    """
    if not manager.counted.ready:
        return 0
    oldest = manager.ready.oldest()
    if not oldest:
        layout = manager.layout
        first = next(iter(view.iterate(layout.ready, keys.after_prefix(layout.ready))), None)
        oldest = 0 if first is None else decoded(records.entries, first[1], manager.name).due
    return times.passed(oldest, view.now, manager.host.by_wall)


def _quantile(ordered: list[int], share: float) -> float | None:
    """Return a quantile of ordered milliseconds, in seconds."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] / 1000 if ordered else None
