"""The timestamps of open snapshots and scans, which garbage collection must not pass.

A timestamp may be protected *as a whole*: then there is a snapshot of the engine as it was then,
taken between two proposals. It is for what has no versions: outboxes, dead letters, sums. Like
protections it is in the leaseholder's memory and gone with the lease; unlike them it cannot be
asked for again.

The snapshots are few, and shared out so that the next client finds one. A client has no more of
them than are free: 8 of 16 if it is alone, and the next one 4. These are the dynamic thresholds of
Choudhury and Hahne (IEEE/ACM Transactions on Networking 6, 1998). A program that calls itself many
clients is still one host. A snapshot counts for the client that has taken it until its timestamp is
protected no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from postroom.errors import Invalid, SnapshotTooOld, Unavailable
from postroom.kv.engine import EngineSnapshot, Reader
from postroom.limits import ENGINE_SNAPSHOTS_MAX, ENGINE_SNAPSHOTS_PER_HOST_MAX
from postroom.ranges.waiting import Deadlines


class _Whole(NamedTuple):
    """A snapshot, and who has taken it; both empty: the node's own process."""

    snapshot: EngineSnapshot
    client: bytes
    host: str


class Protections:
    """Timestamps in use, counted, and how far collection has come.

    Args:
        snapshot: a function that takes an engine snapshot; ``None``: there are none.

    Attributes:
        collected: versions overwritten before this timestamp may be gone.
        replaced: two timestamps, if all that was stored was replaced by something else: that of
            what it was replaced by, and when it was. Between them there was another store.
    """

    def __init__(self, snapshot: Callable[[], EngineSnapshot] | None = None) -> None:
        self._snapshot = snapshot
        self._counts: Counter[int] = Counter()
        self._oldest: Deadlines[int] = Deadlines()
        self._whole: dict[int, _Whole] = {}
        self.collected = 0
        self.replaced = (0, 0)

    def __len__(self) -> int:
        return self._counts.total()

    @property
    def whole(self) -> int:
        """Return the number of timestamps that are protected as a whole."""
        return len(self._whole)

    def add(self, timestamp: int) -> None:
        """Protect ``timestamp`` once more."""
        if timestamp not in self._counts:
            self._oldest.set(timestamp, timestamp)
        self._counts[timestamp] += 1

    def add_whole(self, timestamp: int, client: bytes = b"", host: str = "") -> None:
        """Protect ``timestamp``, which is now, as a whole, for a client of a host.

        Raises:
            Unavailable: there are too many, or its host has.
            Invalid: it has too many itself, so that waiting does not help.
        """
        if self._snapshot is None:
            raise Invalid("nothing can be protected as a whole here")
        if timestamp not in self._whole:
            self._check_room(client, host)
            self._whole[timestamp] = _Whole(self._snapshot(), client, host)
        self.add(timestamp)

    def _check_room(self, client: bytes, host: str) -> None:
        free = ENGINE_SNAPSHOTS_MAX - len(self._whole)
        if free <= 0:
            raise Unavailable(
                f"{ENGINE_SNAPSHOTS_MAX} timestamps are protected as a whole already, which is "
                "as many as a range keeps; nothing was protected: wait until one of them is "
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
        found = self._whole.get(timestamp)
        if found is None:
            raise SnapshotTooOld(
                f"outboxes, dead letters and sums have no versions, and {timestamp} is not "
                "protected as a whole, or was so under another leader: take a new timestamp "
                "with hold(whole=True), and read again"
            )
        return found.snapshot

    def remove(self, timestamp: int) -> None:
        """Take one protection back. A new leaseholder knows none, so unknown ones are ignored."""
        if self._counts[timestamp] > 1:
            self._counts[timestamp] -= 1
            return
        del self._counts[timestamp]
        self._oldest.cancel(timestamp)
        whole = self._whole.pop(timestamp, None)
        if whole is not None:
            whole.snapshot.close()

    def clear(self) -> None:
        """Forget all protections: clients that still need one ask the new leaseholder for it."""
        self._counts.clear()
        self._oldest.clear()
        while self._whole:
            self._whole.popitem()[1].snapshot.close()

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
                f"the store was restored at {opened}, from an export of {image}; what it was at "
                f"{timestamp} is gone: read at a later timestamp"
            )

    def limit(self, threshold: int) -> int:
        """Return ``threshold``, or the oldest protected timestamp if that is older."""
        oldest = self._oldest.first()
        return threshold if oldest is None else min(threshold, int(oldest))
