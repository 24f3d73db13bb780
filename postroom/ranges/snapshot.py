"""Snapshots of a range: all its engine keys, in chunks, from one moment of the engine.

A chunk is a MessagePack list of pairs, about ``CHUNK_BYTES`` long. The state is read from an engine
snapshot as it is sent, so it is never in memory as a whole on this side. The side that installs it
gathers it and stages it in one write set, old keys removed; writing ahead outside the visible keys,
for states larger than memory, needs nothing but another sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from postroom.kv import keys
from postroom.kv.engine import Engine, Reader, WriteSet
from postroom.raft.snapshot import Snapshot

CHUNK_BYTES: Final = 256 * 1024

_encode = msgspec.msgpack.encode
_pairs = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])


def spans(range_id: int) -> list[keys.Span]:
    """Where the engine keys of the range that covers everything are."""
    metadata = keys.RANGE + keys.u64(range_id)
    return [
        keys.Span(metadata, keys.after_prefix(metadata)),
        keys.Span(keys.TRANSACTION, keys.DATA_END),
    ]


def open_snapshot(engine: Engine, range_id: int, applied_index: int) -> Snapshot:
    """The range as it is applied now."""
    return Snapshot(applied_index, _chunks(engine, range_id))


def _chunks(engine: Engine, range_id: int) -> Iterator[bytes]:
    snapshot = engine.snapshot()
    try:
        pairs: list[tuple[bytes, bytes]] = []
        size = 0
        for span in spans(range_id):
            for key, value in snapshot.iterate(*span):
                pairs.append((key, value))
                size += len(key) + len(value)
                if size >= CHUNK_BYTES:
                    yield _encode(pairs)
                    pairs, size = [], 0
        if pairs:
            yield _encode(pairs)
    finally:
        snapshot.close()


class RangeSink:
    """Installs a snapshot; ``installed`` is told the state that is about to be."""

    def __init__(
        self, stored: Reader, range_id: int, installed: Callable[[WriteSet], None]
    ) -> None:
        self._stored = stored
        self._range_id = range_id
        self._installed = installed
        self._pairs: WriteSet = {}

    def begin(self, index: int, term: int) -> None:
        """A snapshot that ends with the entry (``index``, ``term``) follows."""
        del index, term
        self._pairs = {}

    def chunk(self, data: bytes) -> None:
        """The next chunk, in order."""
        self._pairs.update(_pairs.decode(data))

    def finish(self, staged: WriteSet) -> None:
        """Stage the replacement of the whole range."""
        for span in spans(self._range_id):
            staged.update((key, None) for key, _ in self._stored.iterate(*span))
        staged.update(self._pairs)
        self._installed(self._pairs)
        self._pairs = {}

    def abort(self) -> None:
        """Forget what came so far."""
        self._pairs = {}
