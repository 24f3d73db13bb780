"""What can be tuned in consensus, with the unit last in each name.

::

    heartbeat_seconds   <   election_seconds_min   <=   election_seconds_max
    how often a leader       how long a voter that       after which silence a follower
    speaks at least          heard a leader refuses      asks for votes, and a leader that
                             to vote for another         hears no majority steps down

The time that a broadcast takes must be far below the election time-out, and that far below the
mean time between failures (Raft paper, section 5.6). Limits on what is decoded are not tunable:
they are part of the wire format and stand in :mod:`postroom.raft.messages`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """Times and sizes of every group of a node. The defaults suit one data centre.

    Raises:
        ValueError: the times are not in the order that the module's drawing shows.
    """

    heartbeat_seconds: float = 0.1
    election_seconds_min: float = 0.5
    election_seconds_max: float = 1.0

    quiet_after_seconds: float | None = 1.0
    """A group that has had nothing to do for this long stops its heartbeats; ``None``: never."""

    orphan_seconds: float = 1.0
    """How long a deposed leader's proposals wait for their fate before they end as unknown."""

    append_bytes_max: int = 1024 * 1024
    """Entries of one append message; a single entry may be larger, and then goes alone."""

    append_messages_in_flight_max: int = 8
    """Append messages with entries that one follower may be behind with."""

    append_bytes_in_flight_max: int = 8 * 1024 * 1024
    """Bytes of entries that one follower may be behind with; one message may exceed it."""

    snapshot_chunks_in_flight_max: int = 4
    """Chunks of a snapshot that one follower may be behind with."""

    snapshot_bytes_per_turn_max: int = 512 * 1024
    """No more chunks leave in a turn once this much has: entries go first."""

    snapshot_silent_seconds_max: float = 10.0
    """The snapshot opened for a follower that is silent for longer is closed."""

    log_entries_max: int = 4096
    """Entries kept for a silent member; beyond it, that member gets a snapshot."""

    log_bytes_max: int = 16 * 1024 * 1024
    """Bytes kept for a silent member; beyond it, that member gets a snapshot."""

    log_catching_up_factor: int = 4
    """That many times as much is kept for a member that answers, or is being sent a snapshot."""

    def __post_init__(self) -> None:
        """Refuse times in an order that cannot work."""
        ordered = 0 < self.heartbeat_seconds * 2 < self.election_seconds_min
        if not ordered or self.election_seconds_min > self.election_seconds_max:
            raise ValueError(
                "need 0 < 2 * heartbeat_seconds < election_seconds_min <= election_seconds_max, "
                f"not {self.heartbeat_seconds}, {self.election_seconds_min}, "
                f"{self.election_seconds_max}"
            )
