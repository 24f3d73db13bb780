"""The timestamps that collection must not pass: protections of clients, positions of readers.

A *protection* is for a client, and ends with its stream. It is in the leaseholder's memory, and the
oldest one in a record (:mod:`.protection_news`), so that it outlives the lease. A *position* is
stored under a name, and outlives the stream for a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, TypeAlias

import msgspec

from postroom.errors import Error, Invalid, SnapshotTooOld, Unavailable
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.kv.engine import EngineSnapshot, Reader
from postroom.limits import (
    ENGINE_SNAPSHOTS_MAX,
    ENGINE_SNAPSHOTS_PER_HOST_MAX,
    POSITION_NAME_CHARACTERS_MAX,
    POSITION_SECONDS_MAX,
    POSITIONS_MAX,
    PROTECTED_SECONDS_MAX,
    PROTECTIONS_MAX,
    WHOLE_SECONDS_MAX,
)
from postroom.ranges.contract import ROOT_ID, ConcernsRoot, Read, Write
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.ports import Registry
from postroom.ranges.ranges_of_node import RangesOfNode
from postroom.ranges.requests import TimestampNumber
from postroom.ranges.rights import Verb
from postroom.ranges.waiting import Deadlines

# --- protections ----------------------------------------------------------------------------------


@dataclass(eq=False)
class _Whole:
    """The snapshots of a timestamp.

    Attributes:
        client, host: who has taken them; both empty: the node's own process.
        is_kept: whether they stay until they are released, even if nothing protects the timestamp.
        snapshots: those of the ranges.
        origins: for a range that has begun since, the one of which it was a part.
    """

    client: bytes
    host: str
    is_kept: bool = False
    snapshots: dict[int, EngineSnapshot] = field(default_factory=dict)
    origins: dict[int, int] = field(default_factory=dict)

    def close(self) -> None:
        """Close the snapshots; a range that was split shares its own with the right half."""
        for each in {id(each): each for each in self.snapshots.values()}.values():
            each.close()


class Protections:
    """Timestamps in use, counted, and how far collection has come.

    A timestamp may be protected *as a whole*: then there is a snapshot of the engine as it was
    then, taken between two proposals. It is for what has no versions: outboxes, dead letters, sums.
    It is gone with the lease, and cannot be asked for again.

    A leaseholder *inherits* the oldest timestamp that was told before, for a minute. Meanwhile the
    clients that still need one ask for it again.

    The snapshots are few, and shared out so that the next client finds one. A client has no more of
    them than are free: 8 of 16 if it is alone, and the next one 4. These are the dynamic thresholds
    of Choudhury and Hahne (IEEE/ACM Transactions on Networking 6, 1998). A program that calls
    itself many clients is still one host. A snapshot counts for the client that has taken it until
    its timestamp is protected no more.

    The ranges of a node have them in common: those that the root has been asked for, and the
    snapshots that the ranges have taken. Each range knows how far it has collected by itself.

    Args:
        snapshot: a function that takes an engine snapshot; ``None``: there are none.
        range_id: the id of the range.

    Attributes:
        inherited: the oldest timestamp that was protected under the lease before; 0: none.
        of_node: the ranges of the node.
        collected: versions overwritten before this timestamp may be gone.
        age_max: the age of the oldest timestamp that can be protected yet; 0: any can.
        replaced: two timestamps, if all that was stored was replaced by something else: that of
            what it was replaced by, and when it was. Between them there was another store.
    """

    def __init__(
        self, snapshot: Callable[[], EngineSnapshot] | None = None, range_id: int = ROOT_ID
    ) -> None:
        self._snapshot = snapshot
        self._range_id = range_id
        self._counts: Counter[int] = Counter()
        self._oldest: Deadlines[int] = Deadlines()
        self._whole: dict[int, _Whole] = {}
        self._root = self
        self.of_node = RangesOfNode()
        self.age_max = 0
        self.inherited = 0
        self.collected = 0
        self.replaced = (0, 0)

    def share(self, root: Protections) -> None:
        """Have those of the root on this node, from now on."""
        self._counts, self._oldest, self._whole = root._counts, root._oldest, root._whole
        self._root = root
        root.of_node.update(self.of_node)
        self.of_node = root.of_node

    def __len__(self) -> int:
        """Return the number of protections; 0, if they are counted at the root."""
        return self._counts.total() if self._root is self else 0

    @property
    def whole(self) -> int:
        """Return the number of timestamps that are protected as a whole; 0, as above."""
        return len(self._whole) if self._root is self else 0

    @property
    def free(self) -> int:
        """Return how many more timestamps can be protected."""
        return PROTECTIONS_MAX - len(self._counts)

    def add(self, timestamp: int) -> None:
        """Protect ``timestamp`` once more.

        Raises:
            Unavailable: too many are protected.
        """
        if timestamp not in self._counts:
            if self.free <= 0:
                raise Unavailable(
                    f"{PROTECTIONS_MAX} timestamps are protected already, which is as many as a "
                    "store keeps; nothing was protected: try again when snapshots were closed"
                )
            self._oldest.set(timestamp, timestamp)
        self._counts[timestamp] += 1

    def add_whole(self, timestamp: int, client: bytes = b"", host: str = "") -> None:
        """Protect ``timestamp``, which is now, as a whole, for a client of a host.

        Raises:
            Unavailable: there are too many, or its host has.
            Invalid: it has too many itself, so that waiting does not help.
        """
        self.add(timestamp)
        try:
            self.take(timestamp, client, host)
        except Error:
            self.remove(timestamp)
            raise

    def take(self, timestamp: int, client: bytes = b"", host: str = "") -> None:
        """Take the snapshot of the range at ``timestamp``, which is now, for a client of a host.

        Raises:
            Unavailable, Invalid: as above.
        """
        if self._snapshot is None:
            raise Invalid("nothing can be protected as a whole here")
        if timestamp not in self._whole:
            self.end_old(timestamp)
            self._check_room(client, host)
            self._whole[timestamp] = _Whole(client, host)
        snapshots = self._whole[timestamp].snapshots
        if self._range_id not in snapshots:
            snapshots[self._range_id] = self._snapshot()

    def take_until_released(self, timestamp: int, client: bytes, host: str) -> None:
        """Take the snapshot of the range, which stays until :meth:`release`.

        Raises:
            Unavailable, Invalid: as above.
        """
        self.take(timestamp, client, host)
        self._whole[timestamp].is_kept = True

    def release(self, timestamp: int, client: bytes = b"") -> None:
        """Close a client's snapshots at ``timestamp``, now or when nothing protects it any more."""
        whole = self._whole.get(timestamp)
        if whole is not None and whole.client == client:
            whole.is_kept = False
            if timestamp not in self._counts:
                self._close(timestamp)

    def release_client(self, client: bytes) -> None:
        """Close the snapshots of a client that has gone, as above."""
        for timestamp in [*self._whole]:
            self.release(timestamp, client)

    def has_snapshots(self) -> bool:
        """Return whether the range is protected as a whole, at any timestamp."""
        return any(self._range_id in each.snapshots for each in self._whole.values())

    def holds_for(self, client: bytes) -> bool:
        """Return whether a client has snapshots."""
        return any(each.client == client for each in self._whole.values())

    def halve(self, right_id: int) -> None:
        """Let the right half of this range read in the snapshots of the whole."""
        for each in self._whole.values():
            if self._range_id in each.snapshots:
                each.snapshots[right_id] = each.snapshots[self._range_id]
                each.origins[right_id] = each.origins.get(self._range_id, self._range_id)

    def drop(self) -> None:
        """Close the snapshots of this range: another leaseholder may commit below them."""
        for timestamp, whole in [*self._whole.items()]:
            snapshot = whole.snapshots.pop(self._range_id, None)
            if snapshot is not None and snapshot not in whole.snapshots.values():
                snapshot.close()
            if not whole.snapshots:
                del self._whole[timestamp]

    def _close(self, timestamp: int) -> None:
        self._whole.pop(timestamp).close()

    def _check_room(self, client: bytes, host: str) -> None:
        free = ENGINE_SNAPSHOTS_MAX - len(self._whole)
        if free <= 0:
            raise Unavailable(
                f"{ENGINE_SNAPSHOTS_MAX} timestamps are protected as a whole already, which is "
                "as many as a node keeps; nothing was protected: wait until one of them is "
                "given back"
            )
        if not client:
            return
        own = sum(each.client == client for each in self._whole.values())
        of_host = sum(each.host == host for each in self._whole.values())
        if own >= free or of_host >= ENGINE_SNAPSHOTS_PER_HOST_MAX:
            kind = Invalid if own else Unavailable
            raise kind(
                f"this client has {own} timestamps protected as a whole, and its host {of_host}, "
                f"and the {free} that are left are for others; nothing was protected: give one "
                "back first"
            )

    def reader(self, now: Reader, timestamp: int) -> Reader:
        """Return what was stored at ``timestamp``, with versions or without; 0: what is ``now``.

        Raises:
            SnapshotTooOld: it is not protected as a whole, or not any more.
        """
        if not timestamp:
            return now
        whole = self._whole.get(timestamp)
        found = None if whole is None else whole.snapshots.get(self._range_id)
        if found is None:
            raise SnapshotTooOld(
                f"outboxes, dead letters and sums have no versions, and {timestamp} is not "
                "protected as a whole, or was so under another leader: take a new timestamp "
                "with hold(whole=True), and read again"
            )
        return found

    def range_then(self, timestamp: int) -> int:
        """Return the id of the range that had these keys when ``timestamp`` was protected whole."""
        whole = self._whole.get(timestamp)
        return (
            self._range_id if whole is None else whole.origins.get(self._range_id, self._range_id)
        )

    def remove(self, timestamp: int) -> None:
        """Take one protection back; ignore one that this leaseholder does not know."""
        if self._counts[timestamp] > 1:
            self._counts[timestamp] -= 1
            return
        del self._counts[timestamp]
        self._oldest.cancel(timestamp)
        whole = self._whole.get(timestamp)
        if whole is not None and not whole.is_kept:
            self._close(timestamp)

    def clear(self) -> None:
        """Forget all protections: clients that still need one ask the new leaseholder for it.

        They end with the lease of the root, and stay over those of other ranges.
        """
        if self._root is not self:
            return
        self.inherited = 0
        self._counts.clear()
        self._oldest.clear()
        for timestamp in [*self._whole]:
            self._close(timestamp)

    @property
    def readable_from(self) -> int:
        """Return the timestamp from which on everything can be read."""
        return max(self.collected, self.replaced[1])

    def check_replaced(self, timestamp: int) -> None:
        """Refuse a timestamp of the store that was here before a restore.

        The restored data is older, and would be seen by reads at such a timestamp.

        Raises:
            SnapshotTooOld: ``timestamp`` is after the image, and before the store was opened.
        """
        image, opened = self.replaced
        if image < timestamp < opened:
            raise SnapshotTooOld(
                f"the store was restored at {opened}, from an export of {image}; its state at "
                f"{timestamp} is gone: read at a later timestamp"
            )

    @property
    def oldest(self) -> int:
        """Return the oldest protected timestamp; 0: there is none."""
        oldest, inherited = int(self._oldest.first() or 0), self._root.inherited
        return min(oldest, inherited) if oldest and inherited else oldest or inherited

    def limit(self, threshold: int) -> int:
        """Return ``threshold``, or the oldest protected timestamp if that is older."""
        return held_back(threshold, self.oldest)

    def end_old(self, now: int) -> None:
        """Close the snapshots of timestamps that are too old to be protected as a whole."""
        first = now - from_seconds(WHOLE_SECONDS_MAX)
        for timestamp in [each for each in self._whole if each < first]:
            self._close(timestamp)

    def check_age(
        self, timestamp: int, now: int, oldest_position: Callable[[], int] = lambda: 0
    ) -> None:
        """Check that the nodes which lead other ranges hear of a protection in time.

        They have heard of what is protected already, and keep all that is newer. When that ends,
        they hear of this one with the same news.

        Args:
            timestamp: the timestamp.
            now: the present.
            oldest_position: a function that returns the oldest position; 0: there is none.

        Raises:
            SnapshotTooOld: they may collect what it needs before.
        """
        if not self.age_max or timestamp >= now - self.age_max:
            return
        if not any(0 < each <= timestamp for each in (self.oldest, oldest_position())):
            raise SnapshotTooOld(
                f"{timestamp} is so old that other nodes may collect what it needs before they "
                "hear of it; nothing was protected: take a later timestamp"
            )


def held_back(threshold: int, oldest: int) -> int:
    """Return how far versions may be collected, beside the oldest protected timestamp (0: none).

    A client that never ends does not keep versions for ever (``PROTECTED_SECONDS_MAX``).
    """
    if not oldest:
        return threshold
    return min(threshold, max(oldest, threshold - from_seconds(PROTECTED_SECONDS_MAX)))


# --- positions ------------------------------------------------------------------------------------


PositionName: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=POSITION_NAME_CHARACTERS_MAX)
]
PositionSeconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=POSITION_SECONDS_MAX)]


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A position in the answer of ``ReadPositions``, and until when it is kept."""

    name: str
    timestamp: int
    until: int


class KeepPosition(ConcernsRoot, Write, frozen=True, tag="keep_position"):
    """A request to keep all changes after ``timestamp`` readable.

    The answer is whether the name was known.

    Attributes:
        name: the name of the position; a later timestamp of this name takes its place.
        seconds: the time for which it is kept; 0: the position is forgotten.
    """

    answer: ClassVar = bool
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    frees_room: ClassVar = True

    name: PositionName
    timestamp: TimestampNumber
    seconds: PositionSeconds


class ReadPositions(ConcernsRoot, Read, frozen=True, tag="read_positions"):
    """A request for all positions, in the order of their names."""

    answer: ClassVar = list[Position]
    since: ClassVar = 1
    verbs: ClassVar = (Verb.READ,)
    is_served_in_restore: ClassVar = True


_RECORD: Final = "position "
_STEPS_PER_RECORD: Final = 4
"""Records are looked through this many to a step."""


class PositionRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The record of a position.

    Attributes:
        since: the timestamp at which it was kept first.
        until: the timestamp at which its time is over.
    """

    timestamp: int
    since: int
    until: int


_encode = msgspec.msgpack.encode
_records = msgspec.msgpack.Decoder(PositionRecord)


class PositionRecords:
    """The positions of readers.

    A reader that comes back later names the timestamp up to which it has read. Garbage collection
    does not pass that timestamp until the reader names a later one, or the time of the position is
    over. A protection (``Protect``) ends with its connection; a position outlives it::

        KeepPosition ─▶ kept ── KeepPosition, a later timestamp ─▶ kept, for its time anew
                         ├───── KeepPosition, the same one ──────▶ kept, for its time from the first
                         └───── its time is over, or seconds=0 ──▶ gone

    A reader that makes no progress, and tries again for ever, therefore does not hold back
    collection for ever. Its time is counted in timestamps (:mod:`postroom.kv.clock`).

    The evaluators of these requests also say how far collection may go.

    Each position is a record of its own, so moving one costs as much as writing a key. The
    collection looks through all of them (``POSITIONS_MAX`` at most), once for each of its requests,
    as the requests before it have left them. Nothing is in memory that a new leader would have to
    learn.

    A record goes when its reader forgets it, or with the collection that finds its time over. There
    is always one: the commit that has written the record is listed as garbage after it.

    The records are those of the root. Each node has a replica of it, and the collection of every
    range looks at them there.

    Args:
        range_id: the id of the range.
        protections: the protections of the range.

    Attributes:
        limit_as_heard: returns how far this node may collect, by what it has heard of the root's
            leaseholder (:mod:`.protection_news`); ``None``: this is the root.
        first_to_protect: returns the oldest timestamp that can be protected, but for positions.
    """

    def __init__(self, range_id: int, protections: Protections) -> None:
        self.limit_as_heard: Callable[[int, int], int] | None = None
        self.first_to_protect: Callable[[int], int] = lambda _: 0
        self._is_root = range_id == ROOT_ID
        self._prefix = keys.record_key(ROOT_ID, _RECORD)
        self._end = keys.after_prefix(self._prefix)
        self._protections = protections

    def register(self, registry: Registry) -> None:
        """Register the evaluators."""
        registry.writes[KeepPosition] = self.keep
        registry.reads[ReadPositions] = self.read

    # --- requests

    def keep(self, ctx: Evaluation, request: KeepPosition) -> bool:
        """Evaluate ``KeepPosition``.

        Raises:
            SnapshotTooOld: something after the timestamp is collected already.
            Invalid: it lies in the future, there are too many positions, or this is not the root.
        """
        if not self._is_root:
            raise Invalid(
                f"the position {request.name!r} was not kept: a store of several ranges has them "
                "in the first one: do that in a transaction of its own"
            )
        key = self._prefix + request.name.encode()
        packed = ctx.get(key)
        known = None if packed is None else _records.decode(packed)
        if known is not None and self._is_over(known, ctx.timestamp):
            known = None
        ctx.scratch.pop(PositionRecords, None)
        ctx.grow(2 * len(key))
        if not request.seconds:
            if packed is not None:
                ctx.writes[key] = None
            return known is not None
        self._check_readable(ctx, request.timestamp)
        if packed is None:
            self._make_room(ctx)
        anew = known is None or known.timestamp != request.timestamp
        since = ctx.timestamp if known is None or anew else known.since
        until = since + from_seconds(request.seconds)
        ctx.writes[key] = _encode(PositionRecord(request.timestamp, since, until))
        return known is not None

    def _check_readable(self, ctx: Evaluation, timestamp: int) -> None:
        if timestamp < self._protections.collected:
            raise SnapshotTooOld(
                f"changes up to {self._protections.collected} have been garbage collected, "
                f"{timestamp} is older; the position was not kept: begin at a later one"
            )
        self._protections.check_replaced(timestamp)
        if timestamp > ctx.timestamp:
            raise Invalid(
                f"the position {timestamp} lies in the future; it was not kept: give a timestamp "
                "that now() or a commit has told"
            )

    def _make_room(self, ctx: Evaluation) -> None:
        kept = 0
        for key, record in self._all(ctx):
            if self._is_over(record, ctx.timestamp):
                ctx.writes[key] = None
            else:
                kept += 1
        if kept >= POSITIONS_MAX:
            raise Invalid(
                f"{kept} positions are kept already, and no more can be; nothing was changed: "
                "forget those that nobody needs (postroom forget-position NAME; 'postroom status' "
                "shows them)"
            )

    def read(self, view: View, _: ReadPositions) -> list[Position]:
        """Evaluate ``ReadPositions``."""
        found = []
        for key, packed in view.iterate(self._prefix, self._end):
            view.steps += 1
            record = _records.decode(packed)
            if not self._is_over(record, view.now):
                name = key[len(self._prefix) :].decode()
                found.append(Position(name, record.timestamp, record.until))
        return found

    # --- collection

    def readable_from(self, view: View) -> int:
        """Return the timestamp from which everything can be read, and protected."""
        known, first = self._protections.readable_from, self.first_to_protect(view.now)
        if first <= known:
            return known
        return max(known, min(first, self.oldest(view) or first))

    def oldest(self, view: View) -> int:
        """Return the oldest position; 0: there is none."""
        return min((each.timestamp for each in self.read(view, ReadPositions())), default=0)

    def limit(self, ctx: Evaluation, threshold: int) -> int:
        """Return ``threshold``, or the oldest timestamp that somebody reads at, if that is older.

        The oldest is a protected timestamp, or a position.
        """
        looked_at, oldest = ctx.scratch.get(PositionRecords, (0, 0))
        if looked_at != ctx.timestamp:
            kept = (
                record.timestamp
                for _, record in self._all(ctx)
                if not self._is_over(record, ctx.timestamp)
            )
            oldest = min(kept, default=ctx.timestamp)
            ctx.scratch[PositionRecords] = ctx.timestamp, oldest
        limit = self._protections.limit(threshold)
        heard = self.limit_as_heard
        return int(min(oldest, limit if heard is None else heard(limit, ctx.timestamp)))

    def remove_those_over(self, ctx: Evaluation) -> None:
        """Delete the records of positions whose time is over, if this is the root."""
        if not self._is_root:
            return
        for key, record in self._all(ctx):
            if self._is_over(record, ctx.timestamp):
                ctx.writes[key] = None
                ctx.grow(len(key))

    def _all(self, ctx: Evaluation) -> Iterator[tuple[bytes, PositionRecord]]:
        for number, (key, packed) in enumerate(list(ctx.iterate(self._prefix, self._end)), 1):
            ctx.steps += not number % _STEPS_PER_RECORD
            yield key, _records.decode(packed)

    def _is_over(self, record: PositionRecord, now: int) -> bool:
        """Return whether its time is over, or it is of the store that a restore has replaced."""
        return record.until <= now or record.timestamp < self._protections.replaced[1]
