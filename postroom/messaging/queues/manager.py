"""The manager of one queue in one range: what the leaseholder has in memory of it.

::

    notes of a proposal ── applied ─▶ ready cache · leases · first due · counters ─▶ who waits
                                              ▲
    evaluation of the next one ── takes, promises ── (discarded: all is forgotten, read again)

Everything that counts is stored; a manager begins afresh with each lease of the range, and ends
with it. What a proposal does to a queue it says in *notes*, which take effect here once the
proposal is applied: ``(manager, change, act, a, b)``, a change of the counters and a method of this
class with its arguments.

Handing out is the exception: who gets what is decided on memory itself, while the proposal is in
the making. It may come to nothing: it was too large, or it failed. Then ``begin`` finds that the
last evaluation was never applied, and forgets what memory the engine can give again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from postroom.kv import keys
from postroom.kv.clock import LOGICAL_BITS, from_seconds
from postroom.kv.engine import Reader
from postroom.limits import QUEUE_LEASED_MAX
from postroom.messaging.queues import counters
from postroom.messaging.queues.consumers import Consumers, Waiter, Wish, takes_all
from postroom.messaging.queues.counters import Change
from postroom.messaging.queues.damage import QueueDamaged, decoded
from postroom.messaging.queues.leases import Hold, LeaseTable
from postroom.messaging.queues.pacing import GroupBuckets, TokenBucket
from postroom.messaging.queues.ready import ReadyCache
from postroom.messaging.queues.records import Ended, Entry, Layout, Locator, bodies
from postroom.messaging.queues.requests import (
    ClaimQueue,
    QueueDefinition,
    QueueSettings,
    Selection,
)
from postroom.messaging.queues.trouble import Trouble
from postroom.ranges.deadlines import Deadlines
from postroom.ranges.evaluation import Evaluation

WISHES_KEPT: Final = 1000
LATENESS_KEPT: Final = 1000

Note: TypeAlias = "tuple[Manager, Change, Callable[[Manager, Any, Any], None], Any, Any]"

_encode = msgspec.msgpack.encode


class Surroundings(Protocol):
    """What a manager asks of the queues of its range.

    Attributes:
        kept: how long the past can be read, in timestamp units.
    """

    kept: int

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def reading(self) -> int:
        """About now, as a timestamp."""

    def look_at(self, manager: Manager) -> None:
        """There may be something for those who wait."""

    def wake_by(self, moment: float) -> None:
        """At that moment of the monotonic clock something is to be done."""

    def answer(self, waiter: Waiter) -> None:
        """A claim that waits can be answered."""

    def set_aside(self, error: QueueDamaged) -> None:
        """A queue is, as is seen now."""

    def current(self, manager: Manager) -> Manager:
        """The manager of its queue now."""


class Manager:
    """See the module.

    Attributes:
        definition: the queue's, as applied.
        layout: its engine keys.
        counted: its counters, as applied.
        leases, consumers, ready: who holds what, who waits, what may be fired.
        first_due: the timestamp of the first scheduled message; 0: there is none.
        purge_from: where the lists of what was done begin; ``purge_at``: when the first of them may
            go; 0: there is none.
        to_give_back: attempts that go back, and why: ``None``: they do not count.
        taken: engine keys of entries that the proposal in the making has taken.
        lateness: of the last ones fired, in seconds.
        rode: whether the proposal in the making has fired all that it could.
        try_again_at: when the limits of the queue allow more.
        poll_at: when what is stored is looked at though no timer rang.
        empty_from: of a dropped queue, nothing is left below this key; ``names_all``: what was
            found there could all be read.
        trouble: it fails, and is left alone for a while.
    """

    def __init__(self, range_id: int, definition: QueueDefinition, around: Surroundings) -> None:
        self.definition = definition
        self.range_id = range_id
        self.layout = Layout(range_id, definition.number)
        self.counted = counters.Counted()
        self.leases = LeaseTable()
        self.consumers = Consumers(self.leases)
        settings = definition.settings
        self.ordered = settings.order == "group"
        self.ready = ReadyCache(
            settings.cache_size, ordered=self.ordered, on_left_out=self._left_out
        )
        self.around = around
        self.first_due = 0
        self.purge_from = self.layout.done
        self.purge_at = 0
        self.next_tick = 0
        self.to_give_back: dict[tuple[Locator, int], str | None] = {}
        self.taken: set[bytes] = set()
        self.lateness: deque[float] = deque(maxlen=LATENESS_KEPT)
        self.rode = False
        self.try_again_at: float | None = None
        self.trouble = Trouble()
        self.poll_at = around.monotonic() + settings.poller_interval
        self.empty_from = self.layout.whole
        self.names_all = True
        self.freed_at: Deadlines[str] = Deadlines()
        self.group_buckets = GroupBuckets(around.monotonic())
        self._bucket: TokenBucket | None = None
        self._wishes: dict[bytes, Wish] = {}
        self._reader: Reader | Evaluation | None = None
        self._ctx: Evaluation | None = None
        self._scheduled_head = self.layout.scheduled
        self._change_bucket()

    @property
    def name(self) -> str:
        """Of the queue."""
        return self.definition.name

    # --- beginning and ending

    def begin_empty(self) -> None:
        """The queue was made just now."""
        self.ready.nothing_is_stored()

    def restart(self, stored: Reader, now: int) -> None:
        """With a new lease of the range: from what is stored, as of the timestamp ``now``."""
        layout = self.layout
        self.counted = counters.read(stored.get(layout.counters))
        if not self.counted.ready:
            self.ready.nothing_is_stored()
        self.leases.read(stored, layout, self.around.monotonic(), now)
        self.find_first_due(stored)
        counters.check(self.counted, len(self.leases), has_scheduled=self.first_due > 0)
        first = next(iter(stored.iterate(layout.done, keys.after_prefix(layout.done))), None)
        if first is not None:
            done_at = int.from_bytes(first[0][len(layout.done) :][:8], "big")
            self.purge_from, self.purge_at = first[0], done_at + self.retention

    def find_first_due(self, reader: Reader | Evaluation) -> None:
        """When the first scheduled message is due, as it is stored."""
        layout = self.layout
        upper = keys.after_prefix(layout.scheduled)
        first = next(iter(reader.iterate(self._scheduled_head, upper)), None)
        begins = len(layout.scheduled)
        self.first_due = 0 if first is None else int.from_bytes(first[0][begins:][:8], "big")

    @property
    def scheduled_head(self) -> bytes:
        """Nothing is scheduled below this key: reading starts there."""
        return self._scheduled_head

    def change(self, definition: QueueDefinition) -> None:
        """It has other settings."""
        kept_before = self.retention
        self.definition = definition
        if self.purge_at:
            self.purge_at = max(self.purge_at - kept_before + self.retention, 1)
        self.ready.size = definition.settings.cache_size
        self.order_by(definition.settings)
        if self.ready.ordered != self.ordered:
            self.ready.ordered = self.ordered
            self.ready.forget()
        self.poll_at = self.around.monotonic() + definition.settings.poller_interval
        self._change_bucket()
        self.group_buckets.change(definition.settings.group_max_rate, self.around.monotonic())
        self.ready.free_all()
        self.around.look_at(self)
        self.around.wake_by(self.around.monotonic())

    def order_by(self, settings: QueueSettings) -> None:
        """What is enqueued is placed as these settings say."""
        self.ordered = settings.order == "group"

    def _change_bucket(self) -> None:
        rate, now = self.definition.settings.max_rate, self.around.monotonic()
        if rate is None:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = TokenBucket(rate, now)
        else:
            self._bucket.change(rate, now)

    def end(self, refusal: Exception | None) -> None:
        """Nobody is served here any more; who waits is told why, if it is for good."""
        for waiter in self.consumers.clear():
            if refusal is not None:
                waiter.refused = refusal
                self.around.answer(waiter)

    # --- evaluation

    def begin(self, ctx: Evaluation) -> None:
        """The proposal in the making does something with this queue."""
        if self._ctx is ctx:
            return
        self.take_back(ctx)
        self._ctx = ctx
        self.leases.begin_naming()
        self.order_by(self.definition.settings)
        self.rode = False

    def take_back(self, ctx: Evaluation) -> None:
        """What has not taken effect of an evaluation before this one never will."""
        if self._ctx is not None and self._ctx is not ctx:
            self.roll_back()

    def take_up(self, ctx: Evaluation, act: Callable[..., None], one: Any, other: Any) -> None:
        """What the proposal in the making has done so far counts for what it fires: a note of it
        (``act`` and its arguments) before it is applied.
        """
        gone: bytes | None = None
        placed: tuple[bytes, Entry] | None = None
        if act is Manager.ready_added:
            placed = one, other
        elif act is Manager.given_back:
            placed = other
        elif act is Manager.ready_removed:
            gone = one
        elif act is Manager.ready_replaced:
            gone, placed = one, other
        else:
            return
        self.begin(ctx)
        if gone is not None:
            self.ready.discard(gone)
        if placed is None or placed[0] in self.taken:
            return
        if ctx.staged.get(placed[0]) or ctx.is_written(placed[0]):
            self.ready.offer(*placed)

    def roll_back(self) -> None:
        """What was taken for the last evaluation never came about."""
        self.ready.forget()
        self.leases.break_promises()
        self.leases.name_again()
        self.taken.clear()
        for waiter in self.consumers:
            if not waiter.granted:
                waiter.messages, waiter.size, waiter.looked_at = [], 0, 0
        for wish in self._wishes.values():
            wish.cursor = b""
        self._ctx = None
        self.around.look_at(self)

    def applied(self, counted: counters.Counted) -> None:
        """The notes of a proposal are applied."""
        self.counted = counted
        self.leases.break_promises()
        self.taken.clear()
        self._ctx = None

    def conclude(self, ctx: Evaluation) -> None:
        """An evaluation has taken effect, though it may have written nothing here."""
        if self._ctx is ctx:
            self._ctx = None

    # --- limits

    def allowance(self, now: float) -> int:
        """How many may be fired now, by the limits of the whole queue."""
        settings = self.definition.settings
        allowed = 1 << 30
        if settings.max_concurrency is not None:
            allowed = settings.max_concurrency - len(self.leases)
        if self._bucket is not None and allowed > 0:
            tokens = self._bucket.available(now)
            if not tokens:
                self.try_again_at = self._bucket.next_at(now)
                self.around.wake_by(self.try_again_at)
            allowed = min(allowed, tokens)
        return max(allowed, 0)

    @property
    def bucket(self) -> TokenBucket | None:
        """What paces the whole queue."""
        return self._bucket

    # --- who waits

    def wait(self, request: ClaimQueue) -> Waiter:
        """Another claim waits."""
        waiter = Waiter(request, self._wish(request.selection))
        self.consumers.add(waiter)
        return waiter

    def consumer_ids(self) -> set[bytes]:
        """Who waits, or holds a message."""
        return {waiter.request.consumer for waiter in self.consumers} | self.leases.consumers

    def _wish(self, selection: Selection) -> Wish | None:
        if takes_all(selection):
            return None
        packed = _encode(selection)
        wish = self._wishes.get(packed)
        if wish is None:
            if len(self._wishes) >= WISHES_KEPT:
                used = {id(waiter.wish) for waiter in self.consumers}
                self._wishes = {k: w for k, w in self._wishes.items() if id(w) in used}
            self._wishes[packed] = wish = Wish(selection, self._headers)
        return wish

    def _headers(self, entry: Entry) -> dict[str, Any] | None:
        assert self._ctx is not None
        stored = self._ctx.get(self.layout.body_key(entry.key, entry.kind, entry.id))
        self._ctx.steps += 1
        return None if stored is None else decoded(bodies, stored, self.name).headers

    def _left_out(self, key: bytes, entry: Entry) -> None:
        """It is stored, and not in memory: who wants it has to look there."""
        for wish in self._wishes.values():
            if (wish.cursor is None or key < wish.cursor) and wish.may_take(entry):
                wish.cursor = key

    # --- what notes do

    def ready_added(self, key: bytes, entry: Entry) -> None:
        """A message can be fired."""
        if key in self.taken:
            return  # it was, in the same proposal
        self.ready.offer(key, entry)
        if not self.rode:
            self.around.look_at(self)

    def ready_removed(self, key: bytes, group: str) -> None:
        """It cannot any more: it was ended, or is to be fired later."""
        self.ready.discard(key)
        if self.ordered:  # another one may be the head of its group
            self.group_freed(group, None)

    def ready_replaced(self, old: bytes, placed: tuple[bytes, Entry]) -> None:
        """It has another place."""
        self.ready.discard(old)
        self.ready_added(*placed)

    def group_freed(self, group: str, _: object) -> None:
        """Its head may be fired at another time than was thought."""
        self.freed_at.cancel(group)
        self.ready.free(group)
        self.around.look_at(self)

    def scheduled_added(self, due: int, now: int) -> None:
        """A message is to be fired later."""
        if not self.first_due or due < self.first_due:
            self.first_due = due
            seconds = (due - now >> LOGICAL_BITS) / 1000
            self.around.wake_by(self.around.monotonic() + seconds)
        self._scheduled_head = min(
            self._scheduled_head, self.layout.scheduled + due.to_bytes(8, "big")
        )

    def scheduled_moved(self, head: bytes, next_due: int) -> None:
        """Those that were due are ready; nothing is scheduled below ``head``."""
        self._scheduled_head = head
        self.first_due = next_due

    def leases_added(self, hold: Hold, _: object) -> None:
        """Messages were fired for one claim, or one is held for longer."""
        self.leases.add(hold)
        self.around.wake_by(hold.deadline)

    def lease_removed(self, locator: Locator, _: object) -> None:
        """It is held no longer."""
        self.leases_removed([locator])

    def leases_removed(self, locators: list[Locator]) -> None:
        """They are held no longer."""
        groups = self.leases.remove_all(locators)
        for group in groups:
            self.ready.free(group)
        if groups and self._is_limited(len(locators)):
            self.around.look_at(self)

    def _is_limited(self, ended: int) -> bool:
        """Whether the end of so many leases may let another message go."""
        settings = self.definition.settings
        if self.ordered or len(self.leases) + ended >= QUEUE_LEASED_MAX:
            return True
        return settings.max_concurrency is not None or settings.group_max_concurrency is not None

    def given_back(self, locator: Locator, placed: tuple[bytes, Entry]) -> None:
        """It is ready again."""
        self.lease_removed(locator, None)
        self.ready_added(*placed)

    def postponed(self, locator: Locator, dues: tuple[int, int]) -> None:
        """It is scheduled again: due, and now."""
        self.lease_removed(locator, None)
        self.scheduled_added(*dues)

    def ended(self, locators: list[Locator], ended: list[Ended]) -> None:
        """They are done, or cancelled, and are to be purged; those of ``locators`` were held."""
        del ended
        self.leases_removed(locators)
        if not self.purge_at:
            self.purge_at = self.around.reading() + self.retention

    def archived(self, locators: list[Locator], _: list[Ended]) -> None:
        """They are done, and kept."""
        self.leases_removed(locators)

    def tick_set(self, tick: int, _: object) -> None:
        """A periodic schedule was set."""
        if not self.next_tick or tick < self.next_tick:
            self.next_tick = tick
        self.around.wake_by(self.around.monotonic())

    def ticked(self, next_tick: int, _: object) -> None:
        """What was due by them is enqueued."""
        self.next_tick = next_tick

    def nothing(self, _: object, __: object) -> None:
        """Only the counters have changed."""

    def purged(self, purge_from: bytes, purge_at: int) -> None:
        """Of what was done, nothing is left below ``purge_from``; when to go on (0: never)."""
        self.purge_from, self.purge_at = purge_from, purge_at

    @property
    def retention(self) -> int:
        """How long what was done is kept, in timestamp units: also for readers of the past."""
        return max(from_seconds(self.definition.settings.purge_after), self.around.kept)

    def free_groups(self, now: float) -> None:
        """Groups whose time has come take their turns again."""
        for group in self.freed_at.take_due(now):
            self.ready.free(group)
            self.around.look_at(self)
        if self.try_again_at is not None and self.try_again_at <= now:
            self.try_again_at = None
            self.around.look_at(self)

    # --- time

    def poll(self, stored: Reader) -> None:
        """What is stored is looked at now and then, whatever memory says: should it ever be wrong,
        it is not for longer than ``poller_interval``. Nothing is written.
        """
        now = self.around.monotonic()
        if not self._is_polled or self.poll_at > now or self._ctx is not None:
            return
        self.poll_at = now + self.definition.settings.poller_interval
        if self.counted.scheduled:
            self.find_first_due(stored)
        if self.counted.ready and len(self.consumers):
            self.ready.forget()
            self.around.look_at(self)

    @property
    def _is_polled(self) -> bool:
        """Whether there is anything that memory could be wrong about."""
        return bool(self.counted.scheduled or (self.counted.ready and len(self.consumers)))

    def next_poll(self) -> float | None:
        """When that is to be looked at."""
        return self.poll_at if self._is_polled else None

    def next_moment(self, now: int) -> float | None:
        """When there is something to do at the latest, on the monotonic clock."""
        monotonic = self.around.monotonic()
        moments = [self.leases.next_deadline(), self.freed_at.first(), self.try_again_at]
        moments += [
            monotonic + max((timestamp - now >> LOGICAL_BITS) + 1, 0) / 1000
            for timestamp in (self.first_due, self.next_tick, self.purge_at)
            if timestamp
        ]
        if self.to_give_back:
            moments.append(monotonic)
        known = [each for each in moments if each is not None]
        return min(known, default=None)
