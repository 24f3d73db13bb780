"""Leases: at any moment at most one replica of a range serves it.

A lease is a record of the range: a holder, a sequence number, and an interval of timestamps. The
holder answers reads from its own state, without a round. Every proposal names the sequence number
of the lease that it was evaluated under, and is applied only under that very lease: what a deposed
leaseholder still proposes has no effect.

Two things must not overlap, and they are kept apart by different means:

* *Timestamps.* Whatever a holder reads or writes at lies below its lease's expiration, and the
  lease of another holder starts there at the earliest. This holds whatever the clocks say.
* *Moments.* The holder counts ``seconds`` on its monotonic clock from when it *proposed* the lease,
  or its extension; a successor counts a little more (``DRIFT_SHARE``) from when that *came in*,
  which is later. An extension that has not come in at the successor, being leader, was never
  committed, so the holder does not count on it. Wall clocks may stand and jump as they like; only
  the rates of monotonic clocks must not differ by more than the share.

::

    holder      propose ├────────── seconds ──────────┤ serves no longer
                  ╲
    successor    receive ├────────── seconds ── + drift ────┤ may ask for the lease

(The usual rule, as in Chubby and CockroachDB's expiration leases, trusts wall clocks; Gray and
Cheriton's paper of 1989, section 5, already counts from different ends like this.)

A lease that was given back (holder 0) needs no waiting. The same node may succeed itself at once:
its earlier life is over (the store is locked) and its clock starts above what that handed out.
"""

from __future__ import annotations

from typing import Final

import msgspec

from postroom.kv.clock import from_seconds

LEASE_SECONDS: Final = 9.0
DRIFT_SHARE: Final = 0.1
NODE_ID_NOBODY: Final = 0
LEASE_RECORD: Final = "lease"


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who serves a range, over ``start <= timestamp < expiration``, for ``seconds`` at a time."""

    sequence: int
    holder: int
    start: int
    expiration: int
    seconds: float = LEASE_SECONDS

    def extends_after(self) -> int:
        """From then on less than half of the lease is left."""
        return self.expiration - (from_seconds(self.seconds) >> 1)

    def wait_seconds(self, node_id: int) -> float:
        """How long after it was applied another lease may be asked for by ``node_id``."""
        if self.holder in (NODE_ID_NOBODY, node_id):
            return 0.0
        return self.seconds * (1 + DRIFT_SHARE)


NOBODY: Final = Lease(sequence=0, holder=NODE_ID_NOBODY, start=0, expiration=0)


def extended(lease: Lease, now: int, seconds: float) -> Lease:
    """The same lease, for longer."""
    expiration = max(lease.expiration, now + from_seconds(seconds))
    return Lease(lease.sequence, lease.holder, lease.start, expiration, seconds)


def successor(lease: Lease, node_id: int, now: int, seconds: float) -> Lease:
    """The next lease, for ``node_id``, whose clock is past ``lease`` and reads ``now``."""
    return Lease(lease.sequence + 1, node_id, now, now + from_seconds(seconds), seconds)


def given_back(lease: Lease, now: int) -> Lease:
    """Nobody's lease: the holder, whose clock reads ``now``, serves no longer."""
    return Lease(lease.sequence + 1, NODE_ID_NOBODY, now, now, 0.0)


_decoder = msgspec.msgpack.Decoder(Lease)


def encode(lease: Lease) -> bytes:
    """As stored."""
    return msgspec.msgpack.encode(lease)


def decode(stored: bytes | None) -> Lease:
    """From the record; no record means that nobody holds it."""
    return NOBODY if stored is None else _decoder.decode(stored)
