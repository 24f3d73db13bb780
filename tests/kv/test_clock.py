"""The clock: timestamps rise, and go on with time whatever the wall clock does."""

from __future__ import annotations

import pytest

from postroom.kv.clock import (
    CEILING_MILLISECONDS,
    LEAD_LOST,
    LOGICAL_BITS,
    TIMER_MARGIN_SECONDS,
    ClockOffset,
    HybridLogicalClock,
    from_milliseconds,
    from_seconds,
    seconds_until,
)
from postroom.limits import CLOCK_OFFSET_SECONDS_MAX

DAY = 86_400.0


class Machine:
    """A machine: its clocks, and the ceilings that it has stored."""

    def __init__(self, milliseconds: int = 1_700_000_000_000) -> None:
        self.wall = milliseconds
        self.seconds = 10.0
        self.asked = 0
        self.ceilings: list[int] = []

    def wall_milliseconds(self) -> int:
        self.asked += 1
        return self.wall

    def monotonic(self) -> float:
        return self.seconds

    def store(self, ceiling: int) -> bool:
        self.ceilings.append(ceiling)
        return True

    def passes(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall += round(seconds * 1000)

    def is_set(self, seconds: float) -> None:
        """Set the wall clock."""
        self.wall += round(seconds * 1000)

    def clock(self, ceiling: int = 0) -> HybridLogicalClock:
        return HybridLogicalClock(self.wall_milliseconds, self.monotonic, ceiling, self.store)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def seconds_between(earlier: int, later: int) -> float:
    return ((later >> LOGICAL_BITS) - (earlier >> LOGICAL_BITS)) / 1000


def test_following_timestamps_are_above_and_ask_no_wall_clock(machine: Machine) -> None:
    clock = machine.clock()
    first = clock.now()
    asked = machine.asked
    assert [clock.following() for _ in range(3)] == [first + 1, first + 2, first + 3]
    assert machine.asked == asked
    assert clock.now() == first + 4


def test_following_timestamps_stay_below_the_stored_ceiling(machine: Machine) -> None:
    clock = machine.clock()
    clock.now()
    clock.pass_over(machine.ceilings[-1] - 2)
    following = [clock.following(), clock.following(), clock.following()]
    assert following == sorted(set(following))
    assert len(machine.ceilings) == 2
    assert following[-1] < machine.ceilings[-1]
    ahead = machine.ceilings[-1] - following[1]
    assert ahead <= (CEILING_MILLISECONDS + 1) << LOGICAL_BITS


# --- a wall clock that was wrong


def test_timestamps_go_on_with_time_after_a_wall_clock_that_was_ahead(machine: Machine) -> None:
    clock = machine.clock()
    clock.now()
    machine.is_set(DAY)
    wrong = clock.now()
    machine.passes(6.0)
    assert clock.now() > wrong
    machine.is_set(-DAY)
    corrected = clock.now()
    assert corrected > wrong
    machine.passes(10.0)
    after = clock.now()
    assert seconds_between(corrected, after) == pytest.approx(10.0, abs=0.02)
    assert clock.by_wall() == from_milliseconds(machine.wall), "moments follow the correction"


def test_timestamps_lose_no_time_while_nobody_asks(machine: Machine) -> None:
    clock = machine.clock()
    before = clock.now()
    machine.passes(36_000.0)
    machine.is_set(-DAY)
    machine.passes(600.0)
    assert seconds_between(before, clock.now()) == pytest.approx(36_600, rel=LEAD_LOST)


def test_timestamps_go_on_while_the_wall_clock_stands(machine: Machine) -> None:
    clock = machine.clock()
    before = clock.now()
    for _ in range(1000):
        machine.seconds += 0.1
        clock.look_now_and_then()
    assert seconds_between(before, clock.now()) == pytest.approx(100.0, rel=0.01)


def test_a_lead_is_taken_up_when_the_wall_clock_catches_up(machine: Machine) -> None:
    clock = machine.clock()
    machine.is_set(-DAY)
    behind = clock.now()
    machine.passes(5.0)
    machine.is_set(DAY)
    caught_up = clock.now()
    assert seconds_between(behind, caught_up) == pytest.approx(5.0, abs=0.02)
    assert caught_up >> LOGICAL_BITS == machine.wall


def test_a_small_lead_vanishes_with_time(machine: Machine) -> None:
    clock = machine.clock()
    clock.pass_over(clock.now() + from_seconds(0.4))
    for _ in range(500):
        machine.passes(1.0)
        clock.now()
    assert clock.now() >> LOGICAL_BITS == machine.wall


def test_a_restart_goes_on_above_the_ceiling_and_with_time(machine: Machine) -> None:
    ceiling = from_milliseconds(machine.wall) + from_seconds(DAY)
    clock = machine.clock(ceiling)
    assert clock.rests
    assert clock.read() == ceiling
    machine.passes(3.0)
    assert seconds_between(ceiling, clock.reading()) == pytest.approx(3.0, abs=0.02)
    assert clock.read() == ceiling, "who only reads sees one moment"
    first = clock.now()
    machine.passes(2.0)
    assert seconds_between(first, clock.now()) == pytest.approx(2.0, abs=0.02)


def test_the_first_timestamp_after_a_restart_goes_on_with_time(machine: Machine) -> None:
    ceiling = from_milliseconds(machine.wall) + from_seconds(DAY)
    clock = machine.clock(ceiling)
    first = clock.now()
    assert first > ceiling
    machine.passes(2.0)
    assert seconds_between(first, clock.now()) == pytest.approx(2.0, abs=0.02)


def test_a_clock_that_was_wrong_before_anything_was_stamped_leaves_no_lead(
    machine: Machine,
) -> None:
    ceiling = from_milliseconds(machine.wall)
    machine.is_set(DAY)
    clock = machine.clock(ceiling)
    machine.passes(1.0)
    machine.is_set(-DAY)
    assert clock.reading() >> LOGICAL_BITS == machine.wall
    assert clock.now() >> LOGICAL_BITS == machine.wall


def test_a_peer_may_be_ahead_of_this_clock_and_not_of_the_wall_clock_alone(
    machine: Machine,
) -> None:
    clock = machine.clock()
    machine.is_set(DAY)
    clock.now()
    machine.is_set(-DAY)
    clock.update(clock.now() + from_seconds(0.2), 0.5)
    with pytest.raises(ClockOffset):
        clock.update(clock.now() + from_seconds(0.9), 0.5)


def test_clients_move_a_clock_by_no_more_than_clocks_may_differ(machine: Machine) -> None:
    clock = machine.clock()

    def lead() -> float:
        return (clock.reading() >> LOGICAL_BITS) - machine.wall

    def push(seconds: float) -> None:
        ahead = clock.now() + from_seconds(seconds)
        if clock.may_follow(ahead):
            clock.pass_over(ahead)

    for _ in range(1000):
        push(0.1)
    assert lead() == pytest.approx(1000 * CLOCK_OFFSET_SECONDS_MAX, abs=10)
    for _ in range(3600):
        machine.passes(1.0)
        push(0.001)
    assert lead() <= 1000 * CLOCK_OFFSET_SECONDS_MAX + 10
    assert clock.may_follow(clock.now())
    assert not clock.may_follow(clock.now() + from_seconds(0.1))
    machine.passes(CLOCK_OFFSET_SECONDS_MAX / LEAD_LOST)
    assert clock.may_follow(clock.now() + from_seconds(0.4))


def test_timestamps_rise_whatever_is_set(machine: Machine) -> None:
    clock = machine.clock()
    last = clock.now()
    for number in range(2000):
        machine.passes((number % 7) * 0.03)
        if number % 13 == 0:
            machine.is_set((-1) ** number * (number % 11) * 1000.0)
        reading = clock.reading()
        timestamp = clock.now()
        assert timestamp > last
        assert reading >= last
        last = timestamp


def test_a_timestamp_has_come_after_its_seconds_and_not_a_millisecond_later() -> None:
    due = from_milliseconds(1020)
    assert seconds_until(due, from_milliseconds(1000)) == 0.02
    assert seconds_until(due, from_milliseconds(1000) + 7) == 0.02
    assert seconds_until(due, from_milliseconds(1020)) == 0.0
    assert seconds_until(due + 1, from_milliseconds(1020)) == 0.001
    assert seconds_until(due, from_milliseconds(2000)) == 0.0


def test_a_timer_rings_when_the_millisecond_of_a_timestamp_begins() -> None:
    """It would ring up to a millisecond later, counted from a clock in whole milliseconds."""
    since = 0.0
    clock = HybridLogicalClock(
        lambda: 1000, lambda: 0.0, 0, lambda _: True, since_millisecond=lambda: since
    )
    due = from_milliseconds(1020)
    assert clock.seconds_until(due) == 0.02
    since = 0.0007
    assert clock.seconds_until(due) == pytest.approx(0.0193 + TIMER_MARGIN_SECONDS)
    since = 0.00001
    assert clock.seconds_until(due) == 0.02, "never before the millisecond begins"
    assert clock.seconds_until(from_milliseconds(1000)) == 0.0
