"""Leaseholders and the ends of their leases: two nodes' views, with clocks that are set by hand."""

from __future__ import annotations

import pytest

from postroom.kv.clock import HybridLogicalClock, from_seconds
from postroom.ranges import lease as leases
from postroom.ranges.lease import DRIFT_SHARE, LeaseHolder, RangeLease

SECONDS = 1.0
EPOCH_MILLISECONDS = 1_700_000_000_000


class Side:
    """One node: its clocks, and its view of the lease."""

    def __init__(self, node_id: int, lease: RangeLease = leases.NOBODY) -> None:
        self.seconds = 100.0 * node_id
        self.wall = EPOCH_MILLISECONDS
        self.clock = HybridLogicalClock(lambda: self.wall, lambda: self.seconds, 0, lambda _: True)
        self.lease_holder = LeaseHolder(node_id, lease, self.clock, lambda: self.seconds, SECONDS)
        self.until = 0.0
        self.received_at = self.seconds

    def passes(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall += int(seconds * 1000)

    def ask(self) -> RangeLease:
        """Propose the next lease."""
        self.until = self.lease_holder.until_if_granted()
        return self.lease_holder.successor()

    def ask_for_more(self) -> RangeLease:
        self.until = self.lease_holder.until_if_granted()
        return self.lease_holder.extended()

    def apply(self, lease: RangeLease, *, received: bool = True) -> None:
        if received:
            self.received_at = self.seconds
        self.lease_holder.applied(leases.encode(lease))

    def begin(self) -> None:
        self.lease_holder.begin()
        self.lease_holder.granted(self.until)

    def serves(self) -> bool:
        return self.lease_holder.serves(self.clock.now())

    def may_ask(self) -> bool:
        return self.lease_holder.may_ask_at(self.received_at) <= self.seconds


@pytest.fixture
def sides() -> tuple[Side, Side]:
    """Return the holder, which has just begun to serve, and another node."""
    holder, other = Side(1), Side(2)
    lease = holder.ask()
    holder.apply(lease)
    other.apply(lease)
    holder.begin()
    return holder, other


def both(sides: tuple[Side, Side], seconds: float) -> None:
    for side in sides:
        side.passes(seconds)


def test_a_new_replica_does_not_serve() -> None:
    assert not Side(1).serves()
    assert Side(1).may_ask()


def test_the_holder_serves_until_its_time_is_over(sides: tuple[Side, Side]) -> None:
    holder, _ = sides
    assert holder.serves()
    both(sides, SECONDS - 0.001)
    assert holder.serves()
    both(sides, 0.002)
    assert not holder.serves()


def test_another_node_waits_longer_than_the_holder_serves(sides: tuple[Side, Side]) -> None:
    holder, other = sides
    both(sides, SECONDS)
    assert not holder.serves()
    assert not other.may_ask()
    both(sides, SECONDS * DRIFT_SHARE + 0.001)
    assert other.may_ask()


def test_the_holder_counts_from_its_proposal_and_others_from_its_effect() -> None:
    """The entry may have been under way for long: the holder's time begins first, so ends first."""
    holder, other = Side(1), Side(2)
    lease = holder.ask()
    both((holder, other), 0.7)
    holder.apply(lease)
    holder.begin()
    both((holder, other), 0.2)
    other.apply(lease)
    both((holder, other), 0.2)
    assert not holder.serves()
    both((holder, other), SECONDS - 0.2)
    assert not other.may_ask()


def test_a_lease_counts_from_the_arrival_of_its_entry() -> None:
    """A follower may learn only as the next leader that the last entry is committed."""
    holder, other = Side(1), Side(2)
    lease = holder.ask()
    both((holder, other), 0.01)
    other.received_at = other.seconds
    both((holder, other), 0.8)
    other.apply(lease, received=False)
    assert not other.may_ask()
    both((holder, other), 0.4)
    assert other.may_ask()


@pytest.mark.parametrize("jump", [-3600.0, -1.0, 1.0, 3600.0])
def test_a_wall_clock_that_jumps_gives_nobody_more_time(
    sides: tuple[Side, Side], jump: float
) -> None:
    holder, other = sides
    both(sides, SECONDS - 0.1)
    holder.wall += int(jump * 1000)
    other.wall -= int(jump * 1000)
    assert not other.may_ask()
    both(sides, 0.2)
    assert not holder.serves()


def test_an_extension_is_more_time_for_the_one_and_more_waiting_for_the_other(
    sides: tuple[Side, Side],
) -> None:
    holder, other = sides
    both(sides, 0.6)
    more = holder.ask_for_more()
    holder.apply(more)
    holder.lease_holder.granted(holder.until)
    other.apply(more)
    both(sides, 0.6)
    assert holder.serves()
    assert not other.may_ask()


def test_an_extension_is_asked_for_in_time_although_the_wall_clock_stands(
    sides: tuple[Side, Side],
) -> None:
    holder, _ = sides
    assert not holder.lease_holder.wants_extension(holder.clock.last())
    holder.seconds += 0.6
    assert holder.lease_holder.wants_extension(holder.clock.last())


def test_the_timestamps_of_two_leases_do_not_overlap(sides: tuple[Side, Side]) -> None:
    """They do not if the successor's clock is an hour behind: it is pushed past the old lease."""
    _, other = sides
    other.wall -= 3_600_000
    before = other.lease_holder.lease
    lease = other.ask()
    assert lease.start >= before.expiration
    assert other.clock.now() > lease.start


def test_a_node_may_succeed_itself_at_once() -> None:
    """Its earlier life is over: its clock alone says that nothing overlaps."""
    stored = RangeLease(7, 1, 5, from_seconds(3.0) + (EPOCH_MILLISECONDS << 16), SECONDS)
    again = Side(1, stored)
    assert again.may_ask()
    assert again.ask().start < stored.expiration


def test_a_lease_that_is_given_back_needs_no_waiting(sides: tuple[Side, Side]) -> None:
    holder, other = sides
    holder.lease_holder.end()
    back = holder.lease_holder.given_back()
    assert not holder.serves()
    other.apply(back)
    assert other.may_ask()
    assert other.ask().start >= back.expiration


def test_a_restart_waits_as_if_the_lease_were_new() -> None:
    other = Side(2, RangeLease(3, 1, 0, from_seconds(1.0), SECONDS))
    other.passes(SECONDS)
    assert not other.may_ask()
    other.passes(SECONDS * DRIFT_SHARE + 0.001)
    assert other.may_ask()


def test_another_lease_of_the_same_node_ends_the_one_before(sides: tuple[Side, Side]) -> None:
    """The evaluations under the old one have no effect: memory begins afresh."""
    holder, _ = sides
    assert holder.lease_holder.applied(leases.encode(holder.lease_holder.extended()))
    assert not holder.lease_holder.applied(leases.encode(holder.lease_holder.successor()))
