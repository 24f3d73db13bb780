"""The trail of a store, as a backup uses it: begun before it is taken, forgotten when it is there.

::

    backup n     begin ─ hold ────────────── read, written ─ end: forgotten up to n
    changes            └ kept ─────────────────────────────────────────────────────▶
    backup n + 1                                                     begin ─ hold ─ ...
"""

from __future__ import annotations

from postroom.client.database import CoreDatabase
from postroom.client.trail import end_trail, keep_trail, read_trail
from postroom.messaging.trail_requests import TrailState


class StoreTrail:
    """The trail of a store during one backup.

    Args:
        db: the store.
        is_wanted: whether it is kept from now on; ``None``: it stays as it is, and unused.
    """

    def __init__(self, db: CoreDatabase, is_wanted: bool | None) -> None:
        self._db = db
        self._sender = db.sender
        self._is_wanted = is_wanted
        self._before = TrailState()
        self._has_begun = False

    async def begin(self) -> None:
        """Keep a trail, if it is wanted; note what there was before. Or end it.

        Each try of the backup calls this; the first one counts.

        Raises:
            Invalid: the store has several ranges.
        """
        if self._has_begun:
            return
        self._has_begun = True
        if self._is_wanted is False:
            await end_trail(self._sender)
        elif self._is_wanted:
            self._before = known = await read_trail(self._sender)
            if not known.since or known.ended:
                await keep_trail(self._sender)

    async def complete_until(self, since: int, at: int) -> int:
        """Return the timestamp, ``at`` or before, up to which the trail is complete; 0: it is not.

        Args:
            since: the timestamp of the backup before; 0: there is none.
            at: the timestamp of this one, which is protected as a whole.
        """
        state = self._before
        if not (since and state.since and len(await self._db.ranges()) == 1):
            return 0
        if not state.ended:
            state = await read_trail(self._sender)
        if not 0 < state.since <= since:
            return 0
        until = min(state.ended - 1, at) if state.ended else at
        return until if until > since else 0

    async def end(self, at: int) -> None:
        """Forget what the backup of a timestamp has, which is complete."""
        if self._is_wanted:
            await keep_trail(self._sender, at)
