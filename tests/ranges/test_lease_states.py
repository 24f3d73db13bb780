"""The states of a lease at its holder: the tables, and that what happens follows them."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from postroom.ranges import lease
from postroom.ranges.lease import (
    HandoverEvent,
    HandoverState,
    LeaseAcquisition,
    LeaseEvent,
    LeaseState,
    RangeLease,
)
from tests.ranges.test_lease_holder import Side

TABLES = [
    (lease.TRANSITIONS, LeaseState, LeaseEvent),
    (lease.HANDOVER_TRANSITIONS, HandoverState, HandoverEvent),
]


@pytest.mark.parametrize(("table", "states", "events"), TABLES)
def test_every_state_is_in_the_table_and_can_be_reached(
    table: Any, states: type[IntEnum], events: type[IntEnum]
) -> None:
    first = next(iter(states))
    reached = {first}
    while found := {s for each in reached for s in table[each].values()} - reached:
        reached |= found
    assert reached == set(states) == set(table)
    assert {event for each in table.values() for event in each} == set(events)


def test_a_lease_is_held_once_memory_has_begun_afresh_and_until_it_ends() -> None:
    side = Side(1)
    side.apply(side.ask())
    assert side.lease_holder.state is LeaseState.WITHOUT
    side.begin()
    assert side.lease_holder.state is LeaseState.HELD
    side.passes(1000.0)  # it has lapsed, and is this node's still
    assert not side.serves()
    assert side.lease_holder.has_lease
    assert side.lease_holder.end()
    assert side.lease_holder.state is LeaseState.WITHOUT
    assert not side.lease_holder.end()


class Replica:
    """A replica that takes the lease, and gives it back."""

    def __init__(self) -> None:
        self.side = Side(1)
        self.proposed: list[RangeLease] = []
        self.group: Any = SimpleNamespace(
            is_leader=True, has_applied_own_term=True, entries_received_at=0.0
        )
        host: Any = SimpleNamespace(wake=lambda **_: None, monotonic=lambda: self.side.seconds)
        self.acquisition = LeaseAcquisition(self.side.lease_holder, host, self)
        self.side.apply(self.side.ask())
        self.side.begin()

    def propose_lease(self, lease: RangeLease, after: Callable[[], None], until: float) -> None:
        self.proposed.append(lease)
        after()

    def begin_with_fresh_memory(self) -> None:
        self.side.begin()

    def serve_again(self) -> None: ...

    def stop_serving(self) -> None:
        self.side.lease_holder.end()


def test_a_lease_is_given_back_in_the_turn_that_comes() -> None:
    replica, told = Replica(), []
    replica.acquisition.hand_over(lambda: told.append(1))
    assert replica.acquisition.hands_over
    assert replica.side.serves()
    replica.acquisition.give_back()
    assert replica.acquisition.state is HandoverState.GIVEN_BACK
    assert told
    assert replica.proposed[0].holder == 0
    assert replica.acquisition.must_wait()  # it asks for none
    replica.acquisition.resume()
    assert not replica.acquisition.must_wait()


def test_a_leaseholder_told_to_go_on_in_time_keeps_its_lease() -> None:
    """Its lead was given away all the same, after it had said that it would go on."""
    replica, told = Replica(), []
    replica.acquisition.hand_over(lambda: told.append(1))
    replica.acquisition.resume()
    assert replica.acquisition.state is HandoverState.KEEPING
    assert not replica.acquisition.hands_over
    assert replica.side.serves()
    replica.acquisition.on_leadership(leads=False)
    assert not told


def test_a_deposed_leaseholder_has_no_lease_to_give_back() -> None:
    replica, told = Replica(), []
    replica.acquisition.hand_over(lambda: told.append(1))
    replica.acquisition.on_leadership(leads=False)
    assert told
    assert not replica.acquisition.hands_over
    assert not replica.side.serves()
