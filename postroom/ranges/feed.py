"""The change feed of a range: what ``watch`` reads.

Committed changes can always be read from the versions themselves, by scanning the span. A scan
costs as much as the span is long. While somebody watches, the leaseholder therefore also keeps the
last changes in memory, in order of commit. It keeps ``CHANGES_MAX`` of them at most, and
``FEED_BYTES_MAX`` bytes. A reader that is further behind scans, until it has caught up: once, if
all that it lacks goes into one answer.

::

    nothing kept ── somebody asks ─▶ kept ── nobody waits, and nobody has asked for a while ─┐
         ▲                                    (IDLE_SECONDS), or the lease is over           │
         └───────────────────────────────────────────────────────────────────────────────────┘

An answer ends with the commit that makes it large, and says how far it is complete. A watch that
asks on from there misses nothing.

A watch that waits stands in line for its span (:class:`.Spans`). An applied proposal wakes the
spans that contain one of its changes, and no others. A watch in line has therefore seen all that is
applied. Its client does not know that yet: it is told once in a while, or a new leader would have
to look through versions that may be collected.

Invariant: while a watch stands in line for its span, changes are kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Generator
from typing import Final

import msgspec

from postroom.errors import SnapshotTooOld
from postroom.kv import keys, versions
from postroom.kv.clock import from_seconds
from postroom.kv.engine import WriteSet
from postroom.limits import CHANGES_BYTES_MAX, CHANGES_MAX, FEED_BYTES_MAX
from postroom.ranges.evaluation import Blocked, MustWait, View
from postroom.ranges.ports import Registry, ServiceWakeUp
from postroom.ranges.protections import Protections
from postroom.ranges.requests import CommittedChange, CommittedChanges, ScanChanges
from postroom.ranges.transactions.intents import IntentTable
from postroom.ranges.waiting import ChangeToken, UserSpan, Waiting

IDLE_SECONDS: Final = 10.0
"""A watcher that reads on comes back at once; one that has gone for so long scans when it does."""
REFRESH_SECONDS: Final = 30.0
"""The lag of a client behind its watch, in seconds, at which the watch tells it where it is.

Versions are kept for longer.
"""
_REFRESHED_AT_ONCE: Final = 64
_REFRESH_PAUSE_SECONDS: Final = 0.05
_CHANGES_A_STEP: Final = 32
_FEW_WATCHES: Final = 64
_OVERHEAD_BYTES: Final = 24
TOKEN: Final = "a change is committed"
"""A name for the wait of watches that came when changes were not kept yet."""


class ChangeFeed:
    """The evaluator of ``ScanChanges``.

    Args:
        last_commit: returns the timestamp of the last commit that is applied.
        intents: the transactions over several ranges that are prepared here, and may commit
            earlier than others that are applied.
        protections: the protected timestamps, and how far collection has come.
        waiting: the lines in which watches stand.
        watched: set when changes begin to be kept.
    """

    def __init__(
        self,
        last_commit: Callable[[], int],
        intents: IntentTable,
        protections: Protections,
        waiting: Waiting,
        watched: ServiceWakeUp,
    ) -> None:
        self._last_commit = last_commit
        self._intents = intents
        self._protections = protections
        self._waiting = waiting
        self._watched = watched
        self._asked = False
        self._recent: list[CommittedChange] = []
        self._bytes = 0
        self.floor: int | None = None
        self._hit: dict[UserSpan, list[CommittedChange]] = {}
        self._news: dict[UserSpan, list[CommittedChange]] = {}
        self._before = 0

    @property
    def kept_bytes(self) -> int:
        """Return about how many bytes are kept in memory."""
        return self._bytes

    def _applied(self) -> int:
        """Return the timestamp up to which all commits are applied."""
        return self._intents.limit(self._last_commit())

    def register(self, registry: Registry) -> None:
        """Register the evaluator."""
        registry.reads[ScanChanges] = self.read

    def read(
        self, view: View, request: ScanChanges
    ) -> CommittedChanges | Generator[None, None, CommittedChanges]:
        """Return the changes after ``request.after``, up to what is applied now."""
        until, quiet = self._ends(view, request)
        self._asked = True
        if self.floor is None and not view.in_flight and not view.before:
            # A proposal that is under way, or just being completed, was evaluated when nobody
            # watched: it will not be remembered.
            self.floor = self._applied()
            self._watched.set()
        # Commits above an intent are kept only if they came while changes were kept.
        is_over_intents = self._intents.limit(until) < until
        if self.floor is None or request.after < self.floor or is_over_intents:
            return self._from_versions(view, request, until, quiet)
        return self._answer(request, self._from_memory(view, request, until), until, quiet)

    def _ends(self, view: View, request: ScanChanges) -> tuple[int, int]:
        """Return up to when an answer is complete, with changes and without any.

        Raises:
            Blocked: a proposal that is under way may have earlier commits.
        """
        if request.until:
            until = min(request.until, view.now)
            if view.in_flight and until > self._last_commit():
                raise Blocked
            return until, until
        until = self._applied()
        if request.wait or view.in_flight or view.before:
            return until, until
        # A commit that is not under way by now will have a later timestamp.
        return until, max(until, self._intents.limit(view.now))

    def _answer(
        self, request: ScanChanges, changes: list[CommittedChange], until: int, quiet: int
    ) -> CommittedChanges:
        if request.wait and not changes and not self._is_behind(request, until):
            raise MustWait(TOKEN if self.floor is None else _token(request))
        return _bounded(changes, until if changes else quiet)

    def _is_behind(self, request: ScanChanges, until: int) -> bool:
        """Return whether a watch that has seen everything up to ``until`` must say so now.

        Otherwise its client would fall back behind what is remembered, and in the end behind what
        is collected. While an intent keeps it from being told more, it waits.
        """
        if self.floor is None:
            return False  # a proposal under way will wake it
        behind = max(self.floor, until - from_seconds(REFRESH_SECONDS))
        return request.after < min(behind, until)

    def _from_memory(self, view: View, request: ScanChanges, until: int) -> list[CommittedChange]:
        start, end, after = request.start, request.end, request.after
        news = self._news.get(UserSpan(start, end)) if after >= self._before else None
        if news is not None and not request.until:
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
    ) -> Generator[None, None, CommittedChanges]:
        """Read changes from the versions themselves, over as many turns as that takes.

        If much has changed, only the oldest is kept, as much as fits into an answer.
        """
        self._check_collected(request)
        found: list[CommittedChange] = []
        size, stamp = 0, keys.u64(request.after)
        for change in versions.changes(view, request.start, request.end, stamp):
            view.steps += 1
            if change is not None and (at := int.from_bytes(change.timestamp, "big")) <= until:
                found.append(CommittedChange(at, change.key, change.value, change.integer))
                size += size_of(found[-1])
                if size > 4 * CHANGES_BYTES_MAX:
                    found, until = _oldest(found, until)
                    size = CHANGES_BYTES_MAX
            if view.is_used_up():
                yield
                self._check_collected(request)
        found, until = _oldest(found, until)
        if until != self._applied():
            # A watch that waited now would miss the changes that came meanwhile.
            return CommittedChanges(found, until)
        return self._answer(request, found, until, quiet)

    def _check_collected(self, request: ScanChanges) -> None:
        if request.after < self._protections.collected:
            raise SnapshotTooOld(
                f"changes up to {self._protections.collected} have been garbage collected, "
                f"{request.after} is older: read the span anew and watch from then on"
            )
        self._protections.check_replaced(request.after)

    def followed(self, staged: WriteSet, last_commit: int) -> Callable[[], None]:
        """Return what is to be done once a proposal is applied: to remember its changes."""
        before = self._applied()
        if self._intents.takes_disorder():
            return lambda: self._hear_disorder(before, last_commit)
        return lambda: self._hear(staged, before, last_commit)

    def _hear(self, staged: WriteSet, before: int, last: int) -> None:
        """Remember changes that are applied, and note which of those that watch they concern."""
        if self.floor is None:
            return  # forgotten meanwhile
        self._before, watched = before, self._waiting.watched
        changes = _changes(staged, before)
        changes.sort(key=lambda change: (change.timestamp, change.key))
        if len(changes) > CHANGES_MAX:
            self._hit |= {span: [] for span in _written(watched.all(), staged)}
        elif watched:
            for change in changes:
                for span in watched.holding(change.key):
                    self._hit.setdefault(span, []).append(change)
        self._remember(changes, last)

    def _hear_disorder(self, before: int, last: int) -> None:
        """Note that changes are applied, and earlier ones may follow: all watches scan."""
        if self.floor is not None:
            self._before = before
            self._hit |= {span: [] for span in self._waiting.watched.all()}
            self._forget()
            self.floor = last

    def look_again(self) -> None:
        """Look at the watches that the applied changes concern."""
        waiting = self._waiting
        self._news, self._hit = self._hit, {}
        for span in self._news:
            for call in waiting.lines.get(ChangeToken(span), ()):
                if call.request.after < self._before and not waiting.is_looked_at_later(call):
                    # It has seen everything before.
                    call.request = msgspec.structs.replace(call.request, after=self._before)
            waiting.wake_all(ChangeToken(span))
        self._news = {}
        waiting.wake_all(TOKEN)

    def _remember(self, changes: list[CommittedChange], last: int) -> None:
        if len(changes) > CHANGES_MAX:
            # Most of them would be dropped at once: a watch that has not seen them scans.
            self._forget()
            self.floor = last
            return
        self._recent += changes
        self._bytes += sum(map(size_of, changes))
        if len(self._recent) > CHANGES_MAX or self._bytes > FEED_BYTES_MAX:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop the oldest changes, up to half of what may be kept: that costs little for each."""
        dropped = max(len(self._recent) - CHANGES_MAX // 2, 0)
        size = self._bytes - sum(map(size_of, self._recent[:dropped]))
        while size > FEED_BYTES_MAX // 2:
            size -= size_of(self._recent[dropped])
            dropped += 1
        self.floor = self._recent[dropped - 1].timestamp
        del self._recent[:dropped]
        self._bytes = size

    def begin_anew(self) -> None:
        """Begin under a new lease, or with other data: all watches look at it afresh."""
        self._forget()
        self._before = 0
        self._hit = {span: [] for span in self._waiting.watched.all()}

    def _forget(self) -> None:
        self._recent = []
        self._bytes = 0
        self.floor = None

    async def forget_when_idle(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Forget the changes while nothing watches: a service of the leaseholder."""
        try:
            while True:
                await self._watched.wait()
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
            watches, until = lines.get(ChangeToken(span), ()), self._applied()
            if any(self._is_behind(call.request, until) for call in watches):
                self._waiting.wake_all(ChangeToken(span))
                refreshed += 1
                if not refreshed % _REFRESHED_AT_ONCE:
                    await sleep(_REFRESH_PAUSE_SECONDS)


def _written(watched: list[UserSpan], staged: WriteSet) -> list[UserSpan]:
    """Return the watched spans of which a large proposal writes a key.

    A few of them are returned without a look: each finds out for itself.
    """
    if len(watched) <= _FEW_WATCHES:
        return watched
    found, wide = [], []
    for span in watched:
        if span.end != span.start + b"\x00":
            wide.append(span)
        elif keys.head_key(span.start) in staged:
            found.append(span)
    heads = sorted(filter(keys.is_head, staged)) if wide else []
    for span in wide:
        start, end = keys.data_span(*span)
        index = bisect_left(heads, start)
        if index < len(heads) and heads[index] < end:
            found.append(span)
    return found


def _token(request: ScanChanges) -> ChangeToken:
    return ChangeToken(UserSpan(request.start, request.end))


def _bounded(changes: list[CommittedChange], until: int) -> CommittedChanges:
    """Return the first of ``changes``, complete up to ``until``, as far as one answer goes."""
    size = last = 0
    for index, change in enumerate(changes):
        if size > CHANGES_BYTES_MAX and change.timestamp > last:
            return CommittedChanges(changes[:index], last)
        size += size_of(change)
        last = change.timestamp
    return CommittedChanges(changes, until)


def size_of(change: CommittedChange) -> int:
    """Return the size of a change in an answer."""
    return len(change.key) + len(change.value or b"") + _OVERHEAD_BYTES


def in_order(changes: list[CommittedChange], until: int) -> CommittedChanges:
    """Return the oldest of ``changes``, complete up to ``until``, as far as one answer goes."""
    changes.sort(key=lambda change: (change.timestamp, change.key))
    return _bounded(changes, until)


def _oldest(changes: list[CommittedChange], until: int) -> tuple[list[CommittedChange], int]:
    """Return the oldest of ``changes``, in order, and up to when they are complete."""
    first = in_order(changes, until)
    return first.changes, first.until


def _changes(staged: WriteSet, before: int) -> list[CommittedChange]:
    """Return the versions after ``before`` among raw writes: heads, and those overwritten at once.

    If there are more than ``CHANGES_MAX``, only so many are returned, and one.
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
            changes.append(CommittedChange(timestamp, keys.user_key(raw), value, integer))
            if len(changes) > CHANGES_MAX:
                break
    return changes
