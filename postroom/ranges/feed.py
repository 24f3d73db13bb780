"""The change feed of a range: what ``watch`` reads.

Committed changes can always be read from the versions themselves, by scanning the span. That costs
as much as the span is long, so while somebody watches, the leaseholder also keeps the last changes
in memory, in order of commit: ``CHANGES_MAX`` of them at most, and ``FEED_BYTES_MAX`` bytes. A
reader that is further behind scans, until it has caught up: once, if all that it lacks goes into
one answer.

::

    nothing kept ── somebody asks ─▶ kept ── nobody waits, and nobody has asked for a while ─┐
         ▲                                    (IDLE_SECONDS), or the lease is over           │
         └───────────────────────────────────────────────────────────────────────────────────┘

An answer ends with the commit that makes it large, and says how far it is complete: who asks on
from there misses nothing.

A watch that waits stands in line for its span (:mod:`.spans`). A proposal that is applied wakes the
spans that hold one of its changes, and no others. So a watch in line has seen all that is applied.
Its client does not know that yet: it is told once in a while, or a new leader would have to look
through versions that may be collected.

Invariant: while a watch stands in line for its span, changes are kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Generator
from typing import Final, Protocol

import msgspec

from postroom.errors import SnapshotTooOld
from postroom.kv import keys, versions
from postroom.kv.clock import from_seconds
from postroom.kv.engine import WriteSet
from postroom.limits import CHANGES_BYTES_MAX, CHANGES_MAX, FEED_BYTES_MAX
from postroom.ranges.evaluation import Evaluation, MustWait, View
from postroom.ranges.protections import Protections
from postroom.ranges.registry import Registry
from postroom.ranges.requests import Change, Changes, ScanChanges
from postroom.ranges.spans import Span
from postroom.ranges.waiting import Changed, Waiting

IDLE_SECONDS: Final = 10.0
"""A watcher that reads on comes back at once; one that has gone for so long scans when it does."""
_IDLE_WAIT_SECONDS: Final = 3600.0
REFRESH_SECONDS: Final = 30.0
"""A watch that has seen that much more than its client knows of tells it. Versions are kept for
longer."""
_REFRESHED_AT_ONCE: Final = 64
_REFRESH_PAUSE_SECONDS: Final = 0.05
_CHANGES_A_STEP: Final = 32
_OVERHEAD_BYTES: Final = 24
TOKEN: Final = "a change is committed"
"""For this wait watches that came when changes were not kept yet."""


class FeedSignal(Protocol):
    """Set when something has begun to be kept."""

    def set(self) -> None:
        """Somebody watches."""

    async def wait(self, timeout_seconds: float) -> None:
        """Until it is set, or for a time; then it is not set any more."""


class ChangeFeed:
    """Evaluates ``ScanChanges``.

    Args:
        applied: the timestamp of the last commit that is applied.
        protections: how far back versions are there.
        waiting: the lines in which watches stand.
        watched: set when changes begin to be kept.
    """

    def __init__(
        self,
        applied: Callable[[], int],
        protections: Protections,
        waiting: Waiting,
        watched: FeedSignal,
    ) -> None:
        self._applied = applied
        self._protections = protections
        self._waiting = waiting
        self._watched = watched
        self._asked = False
        self._recent: list[Change] = []
        self._bytes = 0
        self.floor: int | None = None
        self._hit: dict[Span, list[Change]] = {}
        self._news: dict[Span, list[Change]] = {}
        self._before = 0

    @property
    def kept_bytes(self) -> int:
        """About how much is kept in memory."""
        return self._bytes

    def register(self, registry: Registry) -> None:
        """Adds it to ``registry``."""
        registry.reads[ScanChanges] = self.read

    def read(self, view: View, request: ScanChanges) -> Changes | Generator[None, None, Changes]:
        """The changes after ``request.after``, up to what is applied now."""
        until = self._applied()
        # Who does not wait is told up to when nothing was changed: what is not under way by now
        # will have a later timestamp.
        quiet = until if request.wait or view.in_flight or view.before else max(until, view.now)
        self._asked = True
        if self.floor is None and not view.in_flight and not view.before:
            # What is under way, or just being completed, was evaluated when nobody watched: it will
            # not be remembered.
            self.floor = until
            self._watched.set()
        if self.floor is None or request.after < self.floor:
            return self._from_versions(view, request, until, quiet)
        return self._answer(request, self._from_memory(view, request, until), until, quiet)

    def _answer(
        self, request: ScanChanges, changes: list[Change], until: int, quiet: int
    ) -> Changes:
        if request.wait and not changes and not self._is_behind(request, until):
            raise MustWait(TOKEN if self.floor is None else _token(request))
        return _bounded(changes, until if changes else quiet)

    def _is_behind(self, request: ScanChanges, until: int) -> bool:
        """Return whether a watch that has seen everything up to ``until`` says so now: its client
        would fall back behind what is remembered, and in the end behind what is collected.
        """
        if self.floor is None:
            return False  # what is under way will wake it
        return request.after < max(self.floor, until - from_seconds(REFRESH_SECONDS))

    def _from_memory(self, view: View, request: ScanChanges, until: int) -> list[Change]:
        start, end, after = request.start, request.end, request.after
        news = self._news.get(Span(start, end)) if after >= self._before else None
        if news is not None:
            return [change for change in news if change.timestamp > after]
        first = bisect_right(self._recent, after, key=lambda change: change.timestamp)
        view.steps += (len(self._recent) - first) // _CHANGES_A_STEP
        return [
            change
            for change in self._recent[first:]
            if change.timestamp <= until
            and start <= change.key
            and (end is None or change.key < end)
        ]

    def _from_versions(
        self, view: View, request: ScanChanges, until: int, quiet: int
    ) -> Generator[None, None, Changes]:
        """From the versions themselves, over as many turns as that takes.

        Of much that has changed only the oldest is kept, as much as fits into an answer.
        """
        self._check_collected(request)
        found: list[Change] = []
        size, stamp = 0, keys.u64(request.after)
        for change in versions.changes(view, request.start, request.end, stamp):
            view.steps += 1
            if change is not None and (at := int.from_bytes(change.timestamp, "big")) <= until:
                found.append(Change(at, change.key, change.value, change.integer))
                size += size_of(found[-1])
                if size > 4 * CHANGES_BYTES_MAX:
                    found, until = _oldest(found, until)
                    size = CHANGES_BYTES_MAX
            if view.is_used_up():
                yield
                self._check_collected(request)
        found, until = _oldest(found, until)
        if until != self._applied():
            return Changes(found, until)  # who waited now would not hear of what came meanwhile
        return self._answer(request, found, until, quiet)

    def _check_collected(self, request: ScanChanges) -> None:
        if request.after < self._protections.collected:
            raise SnapshotTooOld(
                f"changes up to {self._protections.collected} have been garbage collected, "
                f"{request.after} is older: read the span anew and watch from then on"
            )
        self._protections.check_replaced(request.after)

    def follow(self, ctx: Evaluation) -> None:
        """While somebody watches, what the proposal changes is remembered once it is applied."""
        if self.floor is not None:
            staged, before = ctx.staged, self._applied()
            last = ctx.last_commit
            ctx.after.append(lambda: self._hear(_changes(staged, before), before, last))

    def _hear(self, changes: list[Change], before: int, last: int) -> None:
        """Remember changes that are applied, and note which of those that watch they concern."""
        if self.floor is None:
            return  # forgotten meanwhile
        self._before, watched = before, self._waiting.watched
        changes.sort(key=lambda change: (change.timestamp, change.key))
        if len(changes) > CHANGES_MAX:
            self._hit = {span: [] for span in watched.all()}
        elif watched:
            for change in changes:
                for span in watched.holding(change.key):
                    self._hit.setdefault(span, []).append(change)
        self._remember(changes, last)

    def look_again(self) -> None:
        """What was heard is applied: look at those that it concerns."""
        waiting = self._waiting
        self._news, self._hit = self._hit, {}
        for span in self._news:
            for call in waiting.lines.get(Changed(span), ()):
                if call.request.after < self._before and not waiting.is_looked_at_later(call):
                    # It has seen everything before.
                    call.request = msgspec.structs.replace(call.request, after=self._before)
            waiting.wake_all(Changed(span))
        self._news = {}
        waiting.wake_all(TOKEN)

    def _remember(self, changes: list[Change], last: int) -> None:
        if len(changes) > CHANGES_MAX:
            # Most of them would be dropped at once: who has not seen it scans.
            self._forget()
            self.floor = last
            return
        self._recent += changes
        self._bytes += sum(map(size_of, changes))
        if len(self._recent) > CHANGES_MAX or self._bytes > FEED_BYTES_MAX:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Half of what may be kept stays: dropping costs little for each change."""
        dropped = max(len(self._recent) - CHANGES_MAX // 2, 0)
        size = self._bytes - sum(map(size_of, self._recent[:dropped]))
        while size > FEED_BYTES_MAX // 2:
            size -= size_of(self._recent[dropped])
            dropped += 1
        self.floor = self._recent[dropped - 1].timestamp
        del self._recent[:dropped]
        self._bytes = size

    def begin_anew(self) -> None:
        """A new lease, or other data: those that wait, if any, look at it afresh."""
        self._forget()
        self._before = 0
        self._hit = {span: [] for span in self._waiting.watched.all()}

    def _forget(self) -> None:
        self._recent = []
        self._bytes = 0
        self.floor = None

    async def forget_when_idle(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """A service of the leaseholder: what nobody watches any more is not kept."""
        try:
            while True:
                await self._watched.wait(_IDLE_WAIT_SECONDS)
                while self.floor is not None:
                    self._asked = False
                    await sleep(IDLE_SECONDS)
                    await self._refresh(sleep)
                    if not (self._asked or self._is_awaited()):
                        self._forget()
        finally:
            self._forget()  # another node serves, or none

    def _is_awaited(self) -> bool:
        return bool(self._waiting.watched) or TOKEN in self._waiting.lines

    async def _refresh(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Answer watches whose clients do not know how far they have come; a few at a time."""
        lines, refreshed = self._waiting.lines, 0
        for span in self._waiting.watched.all():
            watches, until = lines.get(Changed(span), ()), self._applied()
            if any(self._is_behind(call.request, until) for call in watches):
                self._waiting.wake_all(Changed(span))
                refreshed += 1
                if not refreshed % _REFRESHED_AT_ONCE:
                    await sleep(_REFRESH_PAUSE_SECONDS)


def _token(request: ScanChanges) -> Changed:
    return Changed(Span(request.start, request.end))


def _bounded(changes: list[Change], until: int) -> Changes:
    """The first of ``changes``, which are complete up to ``until``, as far as one answer goes."""
    size = last = 0
    for index, change in enumerate(changes):
        if size > CHANGES_BYTES_MAX and change.timestamp > last:
            return Changes(changes[:index], last)
        size += size_of(change)
        last = change.timestamp
    return Changes(changes, until)


def size_of(change: Change) -> int:
    """What a change counts in an answer."""
    return len(change.key) + len(change.value or b"") + _OVERHEAD_BYTES


def _oldest(changes: list[Change], until: int) -> tuple[list[Change], int]:
    """The oldest of ``changes``, in order, and up to when they are complete."""
    changes.sort(key=lambda change: (change.timestamp, change.key))
    first = _bounded(changes, until)
    return first.changes, first.until


def _changes(staged: WriteSet, before: int) -> list[Change]:
    """The versions after ``before`` among raw writes: heads, and what was overwritten at once.

    Of more than ``CHANGES_MAX`` only so many, and one.
    """
    changes = []
    for raw, stored in staged.items():
        if stored is None or raw[:1] != keys.DATA:
            continue
        suffix = raw[raw.index(keys.END_OF_KEY, 1) + 2 :]
        if suffix[:1] not in (keys.HEAD, keys.HISTORY):
            continue
        timestamp = int.from_bytes(stored[1:9], "big")
        if timestamp > before:
            value, integer = versions.payload(stored), versions.is_integer(stored)
            changes.append(Change(timestamp, keys.user_key(raw), value, integer))
            if len(changes) > CHANGES_MAX:
                break
    return changes
