"""A split of a range whose clients send updates without end, on three simulated nodes.

Each update concerns keys of two ranges, so it is on its way for a while, and the next ones of the
range go after it. There is never a moment without any, unless commits are paused.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import postroom
from postroom.client.database import CoreDatabase
from postroom.errors import CommitUnknown, Retryable
from tests.sim.cluster.process import ADMINISTRATOR
from tests.sim.cluster.steps import PATIENCE_SECONDS, client, three_nodes

CLIENTS: Final = 6
SPLIT_SECONDS: Final = 0.3
"""The time that the split may take, simulated; without pauses of commits it takes some seconds."""


def count(tx: Any) -> None:
    """Count something for a key of the second range, and for its prefixes in the first one."""
    tx.put(b"a", b"")
    tx.enqueue_update(postroom.Accounting(b"c/x", {"n": 1}))


async def commit_for_ever(db: CoreDatabase) -> None:
    while True:
        with suppress(Retryable, CommitUnknown):
            await db.run(count)


def test_a_split_ends_though_updates_are_sent_all_the_time() -> None:
    with three_nodes(1) as cluster:
        db = client(cluster, ADMINISTRATOR)
        cluster.run(db.split(b"c/"), "the first split", PATIENCE_SECONDS)
        for number in range(CLIENTS):
            cluster.spawn(f"client {number}", commit_for_ever(client(cluster, f"{number}")))
        cluster.agenda.run(0.2)
        cluster.run(db.split(b"b"), "the second split", SPLIT_SECONDS)
