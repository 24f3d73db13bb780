"""A proposal that is completed over several turns brings an extension of the lease along."""

from __future__ import annotations

import pytest

from postroom import limits
from postroom.ranges.lease import LEASE_SECONDS
from tests.client.hand_driver import Running
from tests.client.stores import Store


@pytest.mark.parametrize("turns", range(2, 14))
def test_a_large_proposal_does_not_shorten_a_newer_lease(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """The lease lapsed while it was encoded; what had been asked for before came after."""
    store = Store()
    monkeypatch.setattr(limits, "COMPLETED_AT_ONCE_MAX", 1)
    replica = store.node.root.replica
    store.db.put(b"before", b"")
    store.clock.seconds += LEASE_SECONDS - 1

    async def write() -> None:
        async with store.core.begin() as tx:
            for number in range(4):
                tx.put(b"a%d" % number, b"%d" % number)

    writing = Running(write())
    for _ in range(turns):
        store.node.turn()
    before = replica.lease
    store.clock.seconds += 2
    for _ in range(40):
        store.node.turn()
        writing.go_on()
        lease = replica.lease
        assert lease.sequence == before.sequence
        assert lease.expiration >= before.expiration, "it was good for longer"
        before = lease
    assert writing.done
    assert replica.serves
    assert store.db.get(b"a3") == b"3"
    store.db.close()
