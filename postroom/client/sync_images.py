"""The synchronous form of :mod:`postroom.client.images`."""

from __future__ import annotations

from postroom.client import images as asynchronous
from postroom.client.blocking import blocking, owning
from postroom.client.sender import BlockingSender


class Restore:
    """One run of a restore."""

    def __init__(self, sender: BlockingSender, core: asynchronous.Restore) -> None:
        self._blocking = sender
        self._core = core

    send = blocking(asynchronous.Restore.send)
    flush = blocking(asynchronous.Restore.flush)
    end_part = blocking(asynchronous.Restore.end_part)
    end = blocking(asynchronous.Restore.end)


def _own_restore(sender: BlockingSender, core: asynchronous.Restore | None) -> Restore | None:
    return None if core is None else Restore(sender, core)


class ImageCalls:
    """The restores and counts of one store: ``db.images``."""

    def __init__(self, sender: BlockingSender) -> None:
        self._blocking = sender
        self._core = asynchronous.ImageCalls(sender)

    begin = owning(asynchronous.ImageCalls.begin, _own_restore)

    def of_run(self, run: bytes) -> Restore:
        """Return an object for the same run, for another task."""
        return Restore(self._blocking, self._core.of_run(run))

    abandon = blocking(asynchronous.ImageCalls.abandon)
    read = blocking(asynchronous.ImageCalls.read)
    check = blocking(asynchronous.ImageCalls.check)


class ImagesOfDatabase:
    """The calls of a database for programs that copy all of it."""

    _blocking: BlockingSender

    @property
    def images(self) -> ImageCalls:
        """Return the calls that restore and count images.

        For layers on top.
        """
        return ImageCalls(self._blocking)
