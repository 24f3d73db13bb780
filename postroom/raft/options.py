"""The options of consensus, with the unit last in each name.

::

    heartbeat_seconds   <   election_seconds_min   <=   election_seconds_max
    how often a leader       how long a voter that       after which silence a follower
    speaks at least          heard a leader refuses      asks for votes, and a leader that
                             to vote for another         hears no majority steps down

The time that a broadcast takes must be far below the election time-out, and that far below the
mean time between failures (Raft paper, section 5.6). The limits of decoding are not tunable:
they are part of the wire format and stand in :mod:`postroom.raft.messages`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """The times and sizes of every group of a node. The defaults suit one data centre.

    Raises:
        ValueError: the times are not in the order that the module's drawing shows.
    """

    heartbeat_seconds: float = 0.1
    election_seconds_min: float = 0.5
    election_seconds_max: float = 1.0

    quiet_after_seconds: float | None = 1.0
    """The idle time after which a group stops its heartbeats; ``None``: never."""

    orphan_seconds: float = 1.0
    """The time for which a deposed leader's proposals wait before they end as unknown."""

    append_bytes_max: int = 1024 * 1024
    """Entries of one append message; a single entry may be larger, and then goes alone."""

    append_entries_max: int = 4096
    """Entries of one append message, however short they are."""

    append_messages_in_flight_max: int = 8
    """The append messages with entries that one follower may be behind with."""

    append_bytes_in_flight_max: int = 8 * 1024 * 1024
    """Bytes of entries that one follower may be behind with; one message may exceed it."""

    snapshot_chunks_in_flight_max: int = 4
    """The chunks of a snapshot that one follower may be behind with."""

    snapshot_bytes_per_turn_max: int = 512 * 1024
    """The bytes after which no more chunks leave in a turn: entries go first."""

    snapshot_silent_seconds_max: float = 10.0
    """The silence of a follower after which the snapshot opened for it is closed."""

    log_entries_max: int = 4096
    """Entries kept for a silent member; beyond it, that member gets a snapshot."""

    log_bytes_max: int = 16 * 1024 * 1024
    """Bytes kept for a silent member; beyond it, that member gets a snapshot."""

    log_catching_up_factor: int = 4
    """The factor by which more is kept for a member that answers, or is being sent a snapshot."""

    def __post_init__(self) -> None:
        """Refuse times in an order that cannot work."""
        ordered = 0 < self.heartbeat_seconds * 2 < self.election_seconds_min
        if not ordered or self.election_seconds_min > self.election_seconds_max:
            raise ValueError(
                "need 0 < 2 * heartbeat_seconds < election_seconds_min <= election_seconds_max, "
                f"not {self.heartbeat_seconds}, {self.election_seconds_min}, "
                f"{self.election_seconds_max}"
            )
