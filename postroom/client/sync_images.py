"""The synchronous form of :mod:`postroom.client.images`."""

from __future__ import annotations

from collections.abc import Iterator

from postroom.client import images as asynchronous
from postroom.client.sender import BlockingSender
from postroom.client.sync_iteration import iterate
from postroom.messaging.image_requests import Counted, ImagePage, Restoration


class Restore:
    """One run of a restore."""

    def __init__(self, sender: BlockingSender, core: asynchronous.Restore) -> None:
        self._sender = sender
        self._core = core

    def send(self, names: list[bytes], stored: list[bytes]) -> None:
        """Sends a chunk of entries; waits for the oldest one if too many are under way.

        Raises:
            Invalid, ConditionFailed: an earlier chunk was refused.
        """
        self._sender.run(self._core.send(names, stored))

    def flush(self) -> None:
        """Waits for all of them."""
        self._sender.run(self._core.flush())

    def end_part(self, part: int, rows: int) -> None:
        """A part is there, with so many entries, once what was sent is."""
        self._sender.run(self._core.end_part(part, rows))

    def end(self, parts: int, rows: int) -> None:
        """All parts are there: the store serves everybody.

        Raises:
            Invalid: they are not.
        """
        self._sender.run(self._core.end(parts, rows))


class ImageCalls:
    """Images of one store. ``db.images``."""

    def __init__(self, sender: BlockingSender) -> None:
        self._sender = sender
        self._core = asynchronous.ImageCalls(sender)

    def scan(
        self, start: bytes = b"", end: bytes | None = None, *, at: int, of_range: bool = False
    ) -> Iterator[ImagePage]:
        """The entries of the keys in ``[start, end)``, or (``of_range``) those that belong to no
        key.

        Raises:
            SnapshotTooOld: ``at`` is not protected as a whole.
        """
        return iterate(self._sender, self._core.scan(start, end, at=at, of_range=of_range))

    def begin(self, run: bytes, image: bytes, at: int) -> Restore | None:
        """Closes the store, which is empty, to restore an image into it; or goes on with that.

        Args:
            run: 16 bytes, made up for this run; those before it add nothing any more.
            image: which image: what identifies it.
            at: its timestamp.

        Returns:
            What entries are sent by; ``None``: the image was restored here already.

        Raises:
            Invalid: the store is not empty, or another image is restored here.
        """
        core = self._sender.run(self._core.begin(run, image, at))
        return None if core is None else Restore(self._sender, core)

    def of_run(self, run: bytes) -> Restore:
        """The same run, for another task."""
        return Restore(self._sender, self._core.of_run(run))

    def abandon(self) -> None:
        """Gives up what is being restored: the store is empty again, and serves everybody.

        Raises:
            Invalid: nothing is being restored.
        """
        self._sender.run(self._core.abandon())

    def read(self) -> Restoration:
        """Whether the store is being restored, or was."""
        return self._sender.run(self._core.read())

    def check(self, at: int = 0) -> Counted:
        """Counts all entries, and whether the counters and indexes say what is so.

        Args:
            at: a timestamp that is protected as a whole; 0: now.
        """
        return self._sender.run(self._core.check(at))


class ImagesOfDatabase:
    """What a database offers to those who copy all of it."""

    def __init__(self, sender: BlockingSender) -> None:
        self._images_sender = sender

    @property
    def images(self) -> ImageCalls:
        """Images, read and restored."""
        return ImageCalls(self._images_sender)
