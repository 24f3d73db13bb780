"""The synchronous form of :mod:`postroom.client.staging`."""

from __future__ import annotations

from postroom.client import chunks
from postroom.client import staging as asynchronous
from postroom.client.blocking import blocking
from postroom.client.sender import BlockingSender


class ChunkStream:
    """A stream of requests that are sent one after the other, several under way at a time."""

    def __init__(self, sender: BlockingSender, core: chunks.ChunkStream) -> None:
        self._blocking = sender
        self._core = core

    @property
    def is_late(self) -> bool:
        """Return whether the batch that a chunk was staged for is published already."""
        return self._core.is_late

    send = blocking(chunks.ChunkStream.send)
    flush = blocking(chunks.ChunkStream.flush)


class StagingCalls:
    """The staging and bulk loads of one store: ``db.staging``."""

    def __init__(self, sender: BlockingSender) -> None:
        self._blocking = sender
        self._core = asynchronous.StagingCalls(sender)

    def stream(self) -> ChunkStream:
        """Return a stream for many chunks."""
        return ChunkStream(self._blocking, self._core.stream())

    publish = blocking(asynchronous.StagingCalls.publish)
    finish = blocking(asynchronous.StagingCalls.finish)
    abort = blocking(asynchronous.StagingCalls.abort)
    sweep = blocking(asynchronous.StagingCalls.sweep)
    sweep_some = blocking(asynchronous.StagingCalls.sweep_some)
    forget = blocking(asynchronous.StagingCalls.forget)
    read = blocking(asynchronous.StagingCalls.read)
    begin_load = blocking(asynchronous.StagingCalls.begin_load)
    end_load = blocking(asynchronous.StagingCalls.end_load)


class StagingOfDatabase:
    """The calls of a database for programs that write in many processes."""

    _blocking: BlockingSender

    @property
    def staging(self) -> StagingCalls:
        """Return the calls for staged batches and bulk loads.

        For layers on top.
        """
        return StagingCalls(self._blocking)
