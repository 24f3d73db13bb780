"""Deadlines: one a name, and what is cancelled takes no room."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)

from postroom.ranges.waiting import Deadlines


def test_deadlines_come_due_in_order_and_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for name, moment in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("a2", 1.0)):
        deadlines.set(name, moment)
    assert deadlines.first() == 1.0
    assert deadlines.take_due(0.5) == []
    assert deadlines.take_due(2.0) == ["a", "a2", "b"]
    assert deadlines.take_due(2.0) == []
    assert (deadlines.first(), len(deadlines)) == (3.0, 1)


def test_a_deadline_is_replaced_and_cancelled() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.set("a", 5.0)
    deadlines.set("b", 2.0)
    deadlines.cancel("b")
    deadlines.cancel("nobody")
    assert deadlines.take_due(4.0) == []
    assert deadlines.first() == 5.0
    deadlines.set("a", 2.0)
    assert deadlines.take_due(4.0) == ["a"]
    assert deadlines.first() is None


def test_cancelled_deadlines_leave_no_memory() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(20_000):
        deadlines.set(number, 60.0 + number)
        deadlines.set(-1, 60.0 - number / 1e6)
        deadlines.cancel(number)
    assert len(deadlines) == 1
    assert deadlines.entries < 30


def test_deadlines_agree_with_a_model() -> None:
    random = Random(4)
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, float] = {}
    now = 0.0
    for _ in range(5_000):
        name = random.randrange(12)
        match random.randrange(4):
            case 0 | 1:
                model[name] = now + random.random() * 5
                deadlines.set(name, model[name])
            case 2:
                model.pop(name, None)
                deadlines.cancel(name)
            case _:
                now += random.random()
                due = sorted((moment, each) for each, moment in model.items() if moment <= now)
                assert deadlines.take_due(now) == [each for _, each in due]
                for _, each in due:
                    del model[each]
        assert deadlines.first() == min(model.values(), default=None)
        assert len(deadlines) == len(model)
