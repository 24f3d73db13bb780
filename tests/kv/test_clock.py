"""The clock: what follows a timestamp without asking the wall is above it, below the ceiling."""

from __future__ import annotations

from postroom.kv.clock import CEILING_MILLISECONDS, LOGICAL_BITS, HybridLogicalClock


class Wall:
    def __init__(self) -> None:
        self.milliseconds = 1000
        self.asked = 0
        self.ceilings: list[int] = []

    def __call__(self) -> int:
        self.asked += 1
        return self.milliseconds

    def store(self, ceiling: int) -> bool:
        self.ceilings.append(ceiling)
        return True


def test_what_follows_is_above_and_asks_no_wall_clock() -> None:
    wall = Wall()
    clock = HybridLogicalClock(wall, 0, wall.store)
    first = clock.now()
    asked = wall.asked
    assert [clock.following() for _ in range(3)] == [first + 1, first + 2, first + 3]
    assert wall.asked == asked
    assert clock.now() == first + 4


def test_what_follows_stays_below_what_is_stored() -> None:
    wall = Wall()
    clock = HybridLogicalClock(wall, 0, wall.store)
    clock.now()
    clock.pass_over(wall.ceilings[-1] - 2)
    following = [clock.following(), clock.following(), clock.following()]
    assert following == sorted(set(following))
    assert len(wall.ceilings) == 2
    assert following[-1] < wall.ceilings[-1]
    assert wall.ceilings[-1] - following[1] == CEILING_MILLISECONDS << LOGICAL_BITS
