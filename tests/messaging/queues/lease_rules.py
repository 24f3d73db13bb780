"""The invariants of a queue's leases: all counts and sets follow from the leases themselves."""

from __future__ import annotations

from collections import Counter

from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.range_queues import RangeQueues
from postroom.ranges.requests import CLIENT_ID_BYTES


def check_leases(manager: Manager) -> None:
    """Raise ``AssertionError`` unless the table's memory is what its leases say."""
    table = manager.leases
    leases = table.all()
    leased = Counter(lease.holding for lease in leases)
    stored = {holding: holding.stored for holding in leased}
    clients = Counter(lease.consumer[:CLIENT_ID_BYTES] for lease in leases)
    assert {holding: holding.left for holding in leased} == leased, "a holding is miscounted"
    assert table._held_by == Counter(lease.consumer for lease in leases), "a consumer is miscounted"
    assert table._clients == clients, "a client is miscounted"
    of_groups = Counter(lease.entry.group for lease in leases)
    assert table._of_groups == of_groups, "a group is miscounted"
    of_consumers = {(each.consumer, holding) for holding, each in stored.items()}
    assert _pairs(table._of_consumers) == of_consumers, "a hold is another consumer's"
    of_transactions = {
        (each.transaction, holding) for holding, each in stored.items() if each.transaction
    }
    assert _pairs(table._of_transactions) == of_transactions, "a hold is another transaction's"
    assert set(table._deadlines._deadlines) == set(leased), "a holding has no deadline, or is gone"
    assert set(table._since._deadlines) == set(leased), "a holding is not among those held for long"
    assert manager.counted.leased == len(leases), "the counter of leases differs"
    if not manager.speculation.is_under_way:
        assert len(table) == len(leases), "a promise is left behind"
        assert not table._promised_groups, "a promise to a group is left behind"
        assert not manager.speculation.taken, "an entry is taken by no proposal"


def check_holders(queues: RangeQueues) -> None:
    """Raise ``AssertionError`` unless the range knows who holds messages of which queue."""
    holding = {
        (client, manager)
        for manager in queues._by_name.values()
        for client in manager.leases.clients()
    }
    assert _pairs(queues.claiming._holding) == holding, "a client's holdings are others"
    of_transactions = {
        (lease.holding.stored.transaction, manager)
        for manager in queues._by_name.values()
        for lease in manager.leases.all()
        if lease.holding.stored.transaction and lease.attempt not in manager.to_give_back
    }
    assert of_transactions <= _pairs(queues.claiming._claiming), "a transaction is not known"


def _pairs(sets: dict[bytes, dict[object, None]]) -> set[tuple[bytes, object]]:
    return {(name, each) for name, known in sets.items() for each in known}
