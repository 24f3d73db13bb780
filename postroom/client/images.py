"""The restore of an image of a store, and the count of one; in its asyncio form.

An *image* is everything that a store holds at one timestamp, entry by entry
(:mod:`postroom.messaging.image_entries`). It is read as two tables (:meth:`.Bulk.scan`). The jobs
``export`` and ``restore`` are made of these calls. Every call may be repeated. A request with an
unknown outcome is sent again, until the store answers, for a minute.
"""

from __future__ import annotations

from typing import Any

from postroom.client.commits import repeated
from postroom.client.sender import Sender
from postroom.client.staging import ChunkStream
from postroom.errors import Invalid, Unavailable
from postroom.limits import COUNTED_SECONDS_MAX
from postroom.messaging.ingest.requests import (
    DONE,
    OPENING,
    AbandonRestore,
    BeginRestore,
    CheckImage,
    Counted,
    EndPart,
    EndRestore,
    ReadRestore,
    Restoration,
    RestoreEntries,
)
from postroom.protocol.failures import DeadlineExceeded


class Restore:
    """One run of a restore. Each task needs its own object, for the same run.

    Args:
        sender: the client's sender.
        run: the id of the run.
    """

    def __init__(self, sender: Sender, run: bytes) -> None:
        self._sender = sender
        self._run = run
        self._chunks = ChunkStream(sender)

    async def send(self, names: list[bytes], stored: list[bytes]) -> None:
        """Send a chunk of entries; wait for the oldest one if too many are under way.

        Raises:
            Invalid, ConditionFailed: an earlier chunk was refused.
        """
        await self._chunks.send(RestoreEntries(self._run, names, stored))

    async def flush(self) -> None:
        """Wait for all chunks."""
        await self._chunks.flush()

    async def end_part(self, part: int, rows: int) -> None:
        """Wait for all chunks, and note that a part is complete, with this number of entries."""
        await self.flush()
        await _repeat(self._sender, EndPart(self._run, part, rows))

    async def end(self, parts: int, rows: int) -> None:
        """End the restore, with all parts complete: the store serves everybody again.

        Raises:
            Invalid: the parts are not complete.
        """
        await _repeat(self._sender, EndRestore(self._run, parts, rows))


class ImageCalls:
    """The restores and counts of one store: ``db.images``."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    async def begin(self, run: bytes, image: bytes, at: int) -> Restore | None:
        """Close the store, which is empty, to restore an image into it; or go on with that.

        Args:
            run: 16 bytes, made up for this run; earlier runs add nothing any more.
            image: the identity of the image.
            at: its timestamp.

        Returns:
            The object that sends entries; ``None``: the image was restored here already.

        Raises:
            Invalid: the store is not empty, or another image is restored here.
        """
        request = BeginRestore(run, image, int(at))
        while (state := await _repeat(self._sender, request)) == OPENING:
            pass
        if not state:
            raise Invalid(
                "something was written while the store was being closed: it is not empty; it is "
                "open again, and nothing was restored"
            )
        return None if state == DONE else Restore(self._sender, run)

    def of_run(self, run: bytes) -> Restore:
        """Return an object for the same run, for another task."""
        return Restore(self._sender, run)

    async def abandon(self) -> None:
        """Give up a restore: the store is empty again, and serves everybody.

        Raises:
            Invalid: nothing is being restored.
        """
        has_begun = False
        try:
            while await _repeat(self._sender, AbandonRestore()):
                has_begun = True
        except Invalid:
            # Its last step took place, but its answer was lost; or another client has gone on.
            if not has_begun or (await self.read()).state:
                raise

    async def read(self) -> Restoration:
        """Return whether the store is being restored, or was."""
        found: Restoration = await self._sender.send(ReadRestore())
        return found

    async def check(self, at: int = 0) -> Counted:
        """Count all entries, and check counters and indexes against them.

        Each of several ranges does that for itself, and counts halves of records, and entries that
        others have taken. The job ``audit`` compares what is between ranges.

        Args:
            at: a timestamp that is protected as a whole; 0: now, and what is written meanwhile may
                be a difference.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole, or not any more.
            Unavailable: it could not be done in ``COUNTED_SECONDS_MAX``.
        """
        try:
            found: Counted = await self._sender.send(CheckImage(int(at)), COUNTED_SECONDS_MAX)
        except DeadlineExceeded:
            raise Unavailable(
                f"all entries could not be counted in {COUNTED_SECONDS_MAX:g} s; nothing was "
                "changed: try again when the store has less to do"
            ) from None
        return found


async def _repeat(sender: Sender, request: Any) -> Any:
    return await repeated(sender, lambda: request)
