"""Snapshots in many chunks that are put in place in many pieces, and what becomes of them.

A simulated range is small: with the sizes of the product its snapshot is one chunk and one piece.
Sizes are drawn for each run therefore, often so small that a chunk holds a pair or two. Transfers
break off in the middle then, go on or begin again, and nodes crash with half a state in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import TYPE_CHECKING
from unittest.mock import patch

from postroom.kv.engine import WriteSet
from postroom.raft.snapshots import ArrivingSnapshot
from postroom.ranges import state as range_state

if TYPE_CHECKING:
    from postroom.server.hosted_range import HostedRange


@contextmanager
def drawn_sizes(randomness: Random) -> Iterator[None]:
    """Let chunks and pieces have other sizes meanwhile, or those of the product."""
    chunk_bytes = randomness.choice([200, 600, 2000, range_state.CHUNK_BYTES])
    piece_bytes = randomness.choice([400, 1500, 6000, range_state.PIECE_BYTES])
    with (
        patch.object(range_state, "CHUNK_BYTES", chunk_bytes),
        patch.object(range_state, "PIECE_BYTES", piece_bytes),
    ):
        yield


def watch(hosted: HostedRange, monotonic: Callable[[], float], seen: Counter[str]) -> None:
    """Count the outcomes of transfers to a replica that has just been put together."""
    _watch_spool(hosted, monotonic, seen)
    state = hosted.replica.state
    install = state.install_snapshot

    def counted_install(chunks: Iterable[bytes]) -> Iterator[WriteSet]:
        for piece in install(chunks):
            seen["pieces put in place"] += 1
            yield piece

    state.install_snapshot = counted_install  # type: ignore[method-assign]


def _watch_spool(hosted: HostedRange, monotonic: Callable[[], float], seen: Counter[str]) -> None:
    spool = hosted.group._receiver._spool
    patience = hosted.group.core.options.election_seconds_max
    begin, add = spool.begin, spool.add
    if spool.complete is not None:
        seen["installations begun again"] += 1
    taken_at = float("-inf")  # the first records are from an earlier life

    def counted_begin(arriving: ArrivingSnapshot, staged: WriteSet) -> None:
        nonlocal taken_at
        if spool.arriving is not None:
            seen["transfers restarted"] += 1
        taken_at = monotonic()
        begin(arriving, staged)

    def counted_add(data: bytes, staged: WriteSet) -> None:
        nonlocal taken_at
        now = monotonic()
        if now - taken_at >= patience:
            seen["transfers resumed"] += 1
        taken_at = now
        seen["chunks"] += 1
        add(data, staged)

    spool.begin, spool.add = counted_begin, counted_add  # type: ignore[method-assign]
