"""Watchers: each keeps a mirror of a few keys from the stream of changes, and the mirror is right.

The stream is in order of commit, complete, and resumes where a watcher left off. When a watcher has
fallen too far behind it is told so (``SnapshotTooOld``), reads everything anew, and goes on.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from postroom.client.values import Change
from postroom.errors import SnapshotTooOld
from tests.sim.workloads.workload import EXPECTED, Client, pairs

KEYS = 4
WRITERS = 2
START, END = b"watched/", b"watched0"
LAST = START + b"last"
CHANGES_BEFORE_LEAVING = 12


class Mirror:
    """A copy of the keys as of a timestamp. The changes of one timestamp enter it together."""

    def __init__(self, timestamp: int, content: dict[bytes, bytes]) -> None:
        self.timestamp = timestamp
        self.content = content
        self._coming: list[Change] = []

    def add(self, change: Change) -> None:
        """Add the next change of the stream."""
        before = self._coming[-1] if self._coming else None
        place = (change.timestamp, change.key)
        assert place > ((before.timestamp, before.key) if before else (self.timestamp, b""))
        assert change.timestamp > self.timestamp
        if before is not None and change.timestamp > before.timestamp:
            self.finish()
        self._coming.append(change)

    def finish(self) -> None:
        """End the changes of the timestamp: no more of them come."""
        for change in self._coming:
            self.timestamp = change.timestamp
            if change.value is None:
                self.content.pop(change.key, None)
            else:
                self.content[change.key] = change.value
        self._coming = []

    def leave(self) -> None:
        """Leave the stream; what may be incomplete comes again with the next one."""
        self._coming = []


class Watchers:
    """A workload of clients that watch changes."""

    clients = 4
    start_key, end_key, last_key = START, END, LAST

    def __init__(self) -> None:
        self.mirrors: dict[int, Mirror] = {}

    async def setup(self, db: CoreDatabase) -> None:
        """Set up nothing: nothing is there."""

    async def start(self, client: Client) -> None:
        """Write with the first clients, watch with the others."""
        while client.goes_on():
            if client.number < WRITERS:
                await client.attempt(client.db.run(self._write, client, client.token()))
                await client.pause(0.05)
            else:
                await self._watch(client)

    def _write(self, tx: Any, client: Client, token: bytes) -> None:
        for number in client.random.sample(range(KEYS), client.random.randint(1, 3)):
            key = self._key(number)
            if client.random.random() < 0.3:
                tx.delete(key)
            else:
                tx.put(key, token)

    def _key(self, number: int) -> bytes:
        return self.start_key + b"%d" % number

    def _concerns(self, key: bytes) -> bool:
        """Return whether a key of the watched span is one of this workload."""
        return key.startswith(self.start_key)

    async def _watch(self, client: Client) -> None:
        """Watch a stream, from where the one before was left."""
        try:
            mirror = self.mirrors.get(client.number)
            if mirror is None:
                self.mirrors[client.number] = mirror = await self._read_anew(client.db)
            mirror.leave()
            await self._follow(client.db, mirror, CHANGES_BEFORE_LEAVING, client)
        except SnapshotTooOld as error:
            await client.attempt(self._lost(client.db, client.number, error))
        except EXPECTED:
            await client.pause(0.2)

    async def _lost(self, db: CoreDatabase, number: int, error: SnapshotTooOld) -> None:
        """Begin anew, since the changes are gone."""
        self.mirrors.pop(number, None)

    async def _read_anew(self, db: CoreDatabase) -> Mirror:
        async with db.snapshot() as snapshot:
            found = [pair async for pair in snapshot.scan(self.start_key, self.end_key)]
            own = {key: value for key, value in found if self._concerns(key)}
            return Mirror(snapshot.timestamp, own)

    async def _follow(
        self, db: CoreDatabase, mirror: Mirror, changes_max: int, client: Client | None = None
    ) -> None:
        async for change in db.watch(self.start_key, self.end_key, after=mirror.timestamp):
            if not self._concerns(change.key):
                continue
            mirror.add(change)
            if client is not None:
                client.done += 1
            changes_max -= 1
            if not changes_max or change.key == self.last_key:
                return

    async def check(self, db: CoreDatabase) -> None:
        """Check that the rest of the stream completes each mirror from where it stands."""
        await db.put(self.last_key, b"nothing comes after this")
        now = {key: value for key, value in await pairs(db, self.start_key) if self._concerns(key)}
        for number, mirror in list(self.mirrors.items()):
            mirror.leave()
            try:
                await self._follow(db, mirror, 1_000_000)
            except SnapshotTooOld as error:
                await self._lost(db, number, error)
                continue
            mirror.finish()
            assert mirror.content == now, f"the mirror shows {mirror.content}, there is {now}"


class WatchersOverRanges(Watchers):
    """A workload of clients that watch all keys of the store; theirs lie far apart."""

    start_key, end_key, last_key = b"", b"\xff", b"y/watched"

    def _key(self, number: int) -> bytes:
        return b"%c/watched" % b"ahmt"[number]

    def _concerns(self, key: bytes) -> bool:
        return key.endswith(b"/watched")
