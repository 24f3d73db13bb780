"""The replay of a log when a node is opened: its state gets the entries that it lacks."""

from __future__ import annotations

from postroom.kv.engine import EngineFailed
from postroom.kv.storage import Storage
from postroom.raft.consensus import Consensus
from postroom.server.store import stopped_by


def bring_up_to_date(storage: Storage, consensus: Consensus) -> None:
    """Apply the entries that are known to be committed, once all groups are open, piece by piece.

    Raises:
        Unavailable: a write failed.
    """
    try:
        for writes in consensus.replay():
            storage.write_turn(writes, sync=False)
    except EngineFailed as failure:
        raise stopped_by(failure) from failure
    storage.serve(consensus.held)
