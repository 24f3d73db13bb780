"""Leases: at any moment at most one replica of a range serves it.

A lease is a record of the range: a holder, a sequence number, and an interval of timestamps. The
holder answers reads from its own state, without a round, while its clock lies in the interval.
Every proposal names the sequence number of the lease that it was evaluated under, and is applied
only under that very lease: what a deposed leaseholder still proposes has no effect.

Invariant: the intervals of two leases do not overlap. Extending keeps the sequence; a successor
starts after the end of the old interval, and waits until its own clock is ``max_offset`` past it,
because the old holder's clock may be that much behind. The same node may succeed itself at once:
its earlier life is over (the store is locked) and its clock starts above what that handed out.
"""

from __future__ import annotations

from typing import Final

import msgspec

from postroom.kv.clock import from_seconds
from postroom.limits import CLOCK_OFFSET_SECONDS_MAX

LEASE_SECONDS: Final = 9.0


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who serves a range, over ``start <= timestamp < expiration``."""

    sequence: int
    holder: int
    start: int
    expiration: int

    def held_by(self, node_id: int, timestamp: int) -> bool:
        """Whether ``node_id`` may serve at ``timestamp``."""
        return self.holder == node_id and self.start <= timestamp < self.expiration

    def wants_extension(self, timestamp: int) -> bool:
        """Whether less than half of the lease is left."""
        return timestamp > self.expiration - from_seconds(LEASE_SECONDS) // 2


NOBODY: Final = Lease(sequence=0, holder=0, start=0, expiration=0)


def extended(lease: Lease, now: int) -> Lease:
    """The same lease, for longer."""
    return msgspec.structs.replace(lease, expiration=now + from_seconds(LEASE_SECONDS))


def successor(lease: Lease, node_id: int, now: int) -> Lease | None:
    """The lease that ``node_id`` may ask for at ``now``; ``None``: not yet."""
    safe = lease.expiration + from_seconds(CLOCK_OFFSET_SECONDS_MAX)
    if lease.holder not in (0, node_id) and now < safe:
        return None
    return Lease(lease.sequence + 1, node_id, now, now + from_seconds(LEASE_SECONDS))


_decoder = msgspec.msgpack.Decoder(Lease)


def encode(lease: Lease) -> bytes:
    """As stored."""
    return msgspec.msgpack.encode(lease)


def decode(stored: bytes | None) -> Lease:
    """From the record; no record means that nobody holds it."""
    return NOBODY if stored is None else _decoder.decode(stored)
