"""The rules of slots: shares, halves, and what goes back; and the root's look at all ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.messaging.queues.maintenance import LeaveSlots, OwnedSlots
from postroom.messaging.queues.slot_pool import LimitOf, Resting
from postroom.messaging.queues.slot_sharing import SlotSharer
from postroom.messaging.queues.slots import (
    USE_SECONDS,
    Slots,
    Use,
    counted_anew,
    granted,
    halves,
    left_over,
    returned,
    shares,
)
from postroom.ranges.carrier import Recipient

some = st.integers(min_value=0, max_value=20)


@given(some, some, some, some)
def test_halves_have_all_slots_and_what_their_messages_hold(
    usable: int, surplus: int, holds_left: int, holds_right: int
) -> None:
    slots = Slots(9, usable, surplus)
    left, right = halves(slots, holds_left, holds_right)
    assert left.owned + right.owned == slots.owned
    assert min(left.usable, left.surplus, right.usable, right.surplus) >= 0
    if holds_left + holds_right <= slots.owned:
        assert left.owned >= holds_left
        assert right.owned >= holds_right


@given(some, some, some, st.sampled_from([0, 5]))
def test_slots_that_are_counted_anew_are_conserved(
    usable: int, surplus: int, holds: int, limit: int
) -> None:
    slots = Slots(9, usable, surplus)
    after, given_back = counted_anew(slots, limit, holds)
    assert after.owned + given_back == slots.owned
    assert after.usable == 0
    assert after.owned == (holds if limit else 0)


@given(some, some, some, some)
def test_a_surplus_goes_back_unless_messages_hold_it(
    usable: int, surplus: int, holds: int, keeps: int
) -> None:
    slots = left_over(Slots(9, usable, surplus), keeps)
    assert slots.owned == usable + surplus
    after, free = returned(slots, holds)
    assert after.owned + free == slots.owned
    assert after.owned >= min(holds, slots.owned)
    assert not after.surplus or after.owned <= holds
    assert granted(after, 9, 3) == Slots(9, after.owned + 3, 0)


@given(some, st.dictionaries(st.integers(1, 30), some, max_size=12), some)
def test_shares_are_fair(slots: int, wanted: dict[int, int], rotation: int) -> None:
    found = shares(slots, wanted, rotation)
    assert found.keys() == wanted.keys()
    assert sum(found.values()) == min(slots, sum(wanted.values()))
    assert all(found[each] <= wanted[each] for each in wanted)
    poorest = min((found[each] for each in wanted if found[each] < wanted[each]), default=20)
    assert max(found.values(), default=0) <= poorest + 1


def test_each_range_has_its_time_though_there_are_fewer_slots() -> None:
    wanted = dict.fromkeys(range(1, 21), 5)
    had: set[int] = set()
    for rotation in range(3):
        found = shares(7, wanted, rotation)
        assert sorted(found.values()) == [0] * 13 + [1] * 7
        had |= {each for each in found if found[each]}
    assert had == set(wanted)


def test_the_use_of_two_spans_counts() -> None:
    use = Use(0.0)
    use.note(7)
    assert use.take_peak(USE_SECONDS / 2) is None
    assert [use.take_peak(number * USE_SECONDS) for number in (1, 2, 3)] == [7, 7, 0]


class Pools:
    """A pool without slots, of one limit that is in demand."""

    def __init__(self) -> None:
        self.shares: dict[int, int] = {}

    def free(self, _: LimitOf) -> int:
        return 0

    def note_shares(self, _: LimitOf, found: dict[int, int], __: dict[int, int]) -> None:
        self.shares = found


class Ranges:
    """Three ranges; the last one never answers."""

    def __init__(self) -> None:
        self.left: list[tuple[int, int]] = []

    def carry(
        self, recipient: Recipient, request: LeaveSlots, answered: Callable[[Any], None]
    ) -> None:
        if request.keeps < 100:
            self.left.append((recipient.range_id, request.keeps))
        elif recipient.range_id < 3:
            owned = 6 if recipient.range_id == 1 else 0
            answered(OwnedSlots(owned, owned, 10))


class Clock:
    """A clock that moves by what is waited for."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def set(self, *, urgent: bool = False) -> None:
        pass

    async def wait(self, timeout_seconds: float = 0.0) -> None:
        self.seconds += timeout_seconds


def test_ranges_share_what_a_range_that_is_away_does_not_own() -> None:
    pools, ranges, clock = Pools(), Ranges(), Clock()
    sharer: Any = SlotSharer(pools, ranges, clock.monotonic, clock.wait, clock, clock)  # type: ignore[arg-type]
    name = LimitOf("work", 1, "concurrency")
    every = [Recipient(each, b"%d" % each, None) for each in (1, 2, 3)]
    asking = sharer._ask_all([name], every)
    with pytest.raises(StopIteration) as answer:
        asking.send(None)
    assert sharer._balance(name, answer.value.value[name])
    assert pools.shares == {1: 3, 2: 3}
    assert ranges.left == [(1, 3)]


def test_shares_have_rested_once_their_period_is_over() -> None:
    resting = Resting()
    for number in range(100):
        resting.add(1, number / 100, 1.0)
    assert resting.number(1.0, 1.0) >= 99
    assert len(resting._came) <= 17
    assert resting.number(2.0, 1.0) == 0
