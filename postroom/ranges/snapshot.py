"""Snapshots of a range: all its engine keys, in chunks, from one moment of the engine.

A chunk is a MessagePack list of pairs, in the order of their keys, about ``CHUNK_BYTES`` long, and
longer only if a single pair is. The state is read from an engine snapshot as it is sent, and put in
place in pieces of about ``PIECE_BYTES``, so it is never in memory as a whole on either side::

    install:  piece, piece, ... old keys out  |  piece, piece, ... new pairs in

In between the range is neither: nobody may read it, and after a crash it is done again from the
start (:mod:`postroom.raft.snapshot_receiver`). Only its records, which tell a node that is started
in the meantime with whom it shares the range, are there all the time: the old one or the new one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Final

import msgspec

from postroom.kv import keys
from postroom.kv.engine import Engine, EngineSnapshot, Reader, WriteSet
from postroom.raft.snapshot import StateSnapshot

CHUNK_BYTES: Final = 256 * 1024
PIECE_BYTES: Final = 1024 * 1024

_encode = msgspec.msgpack.encode
_pairs = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])


def spans(range_id: int) -> list[keys.KeySpan]:
    """Where the engine keys of the range that covers everything are."""
    metadata = keys.RANGE + keys.u64(range_id)
    return [
        keys.KeySpan(metadata, keys.after_prefix(metadata)),
        keys.KeySpan(keys.TRANSACTION, keys.DATA_END),
    ]


def open_snapshot(engine: Engine, range_id: int, applied_key: bytes) -> StateSnapshot:
    """The range as the engine holds it, with the index that it itself says is applied."""
    frozen = engine.snapshot()
    applied_index = int.from_bytes(frozen.get(applied_key) or b"", "big")
    return StateSnapshot(applied_index, _Chunks(frozen, range_id))


class _Chunks:
    """An iterator that closes its engine snapshot also if it was never begun."""

    def __init__(self, frozen: EngineSnapshot, range_id: int) -> None:
        self._frozen = frozen
        self._chunks = _cut(frozen, range_id)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._chunks)

    def close(self) -> None:
        self._chunks.close()
        self._frozen.close()


def _cut(frozen: Reader, range_id: int) -> Generator[bytes, None, None]:
    pairs: list[tuple[bytes, bytes]] = []
    size = 0
    for span in spans(range_id):
        for key, value in frozen.iterate(*span):
            if pairs and size + len(key) + len(value) > CHUNK_BYTES:
                yield _encode(pairs)
                pairs, size = [], 0
            pairs.append((key, value))
            size += len(key) + len(value)
    if pairs:
        yield _encode(pairs)


def is_chunk(range_id: int, data: bytes) -> bool:
    """Whether ``data``, from the network, holds pairs of this range, in order, and nothing else."""
    if not data:
        return True
    try:
        pairs = _pairs.decode(data)
    except (ValueError, RecursionError, msgspec.DecodeError):
        return False
    before = b""
    for key, _ in pairs:
        if key <= before or not any(span.lower <= key < span.upper for span in spans(range_id)):
            return False
        before = key
    return True


def install(stored: Reader, range_id: int, chunks: Iterable[bytes]) -> Iterator[WriteSet]:
    """What replaces the range by that of ``chunks``; each piece is written before the next."""
    metadata, content = spans(range_id)
    records = keys.KeySpan(keys.record_key(range_id, ""), metadata.upper)
    for span in (keys.KeySpan(metadata.lower, records.lower), content):
        yield from _removals(stored, span)
    outdated = {key for key, _ in stored.iterate(*records)}
    piece: WriteSet = {}
    size = 0
    for chunk in chunks:
        if piece and size + len(chunk) > PIECE_BYTES:
            yield piece
            piece, size = {}, 0
        pairs = _pairs.decode(chunk) if chunk else []
        piece.update(pairs)
        outdated.difference_update(key for key, _ in pairs)
        size += len(chunk)
    piece.update(dict.fromkeys(outdated))
    if piece:
        yield piece


def _removals(stored: Reader, span: keys.KeySpan) -> Iterator[WriteSet]:
    """The keys of ``span``, a piece at a time; what is gone is not stepped over again."""
    lower = span.lower
    while True:
        piece: WriteSet = {}
        size = 0
        for key, value in stored.iterate(lower, span.upper):
            piece[key] = None
            size += len(key) + len(value)
            if size > PIECE_BYTES:
                break
        if not piece:
            return
        lower = next(reversed(piece)) + b"\0"
        yield piece
