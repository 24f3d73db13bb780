"""The synchronous form of a snapshot: see :mod:`postroom.client.sync`."""

from __future__ import annotations

from postroom.client import snapshot as asynchronous
from postroom.client.blocking import blocking, iterating
from postroom.client.sender import BlockingSender
from postroom.kv.clock import Timestamp


class Snapshot:
    """Reads at one timestamp, protected from garbage collection while the snapshot is open.

    All its methods may raise ``WrongType``: the codec cannot unpack a stored value. They may raise
    ``SnapshotTooOld``: the leaseholder's memory was lost for so long that the versions were
    collected.
    """

    def __init__(self, sender: BlockingSender, core: asynchronous.Snapshot) -> None:
        self._blocking = sender
        self._core = core

    @property
    def timestamp(self) -> Timestamp:
        """Return the timestamp at which it reads."""
        return self._core.timestamp

    get = blocking(asynchronous.Snapshot.get)
    get_many = blocking(asynchronous.Snapshot.get_many)
    scan = iterating(asynchronous.Snapshot.scan)
    peek = blocking(asynchronous.Snapshot.peek)
