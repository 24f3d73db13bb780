"""Lines: first come, first served; one is looked at at a time; and no wake-up is lost."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)
from typing import Any

from postroom.ranges.calls import Call
from postroom.ranges.waiting import Waiting


class Waiter(Call):
    """A call that wants some of what there is; ``blocked``: it cannot be looked at for now."""

    __slots__ = ("blocked", "got", "wants")

    def __init__(self, wants: int = 1) -> None:
        super().__init__(None)
        self.wants = wants
        self.got = 0
        self.blocked = False

    def complete(self, result: Any, error: BaseException | None) -> None:
        assert not self.cancelled
        assert not self.got, "answered twice"
        self.got = result


class Shop:
    """A shop with a number of goods, at one token, and those who wait for them."""

    def __init__(self) -> None:
        self.waiting = Waiting(self.look)
        self.goods = self.looks = 0
        self.served: list[Waiter] = []

    def look(self, call: Any) -> None:
        self.looks += 1
        if call.blocked:
            self.waiting.look_later(call)
        elif not self.goods:
            self.waiting.park(call, "goods")
        else:
            taken = min(call.wants, self.goods)
            self.goods -= taken
            token = self.waiting.leave(call)
            self.served.append(call)
            call.complete(taken, None)
            if token is not None:
                self.waiting.wake(token)

    def arrive(self, goods: int) -> None:
        self.goods += goods
        self.waiting.wake("goods")

    def unblock(self, call: Waiter) -> None:
        call.blocked = False
        self.look(call)

    def cancel(self, call: Waiter) -> bool:
        call.cancelled = True
        return self.waiting.cancel(call)

    def queue(self, number: int, wants: int = 1) -> list[Waiter]:
        waiters = [Waiter(wants) for _ in range(number)]
        for waiter in waiters:
            self.look(waiter)
        return waiters


def test_first_come_first_served() -> None:
    shop = Shop()
    waiters = shop.queue(5)
    shop.arrive(2)
    shop.arrive(2)
    assert shop.served == waiters[:4]
    assert len(shop.waiting) == 1


def test_a_handover_costs_the_same_however_many_wait() -> None:
    costs = []
    for number in (10, 10_000):
        shop = Shop()
        shop.queue(number)
        shop.looks = 0
        shop.arrive(1)
        costs.append(shop.looks)
    assert costs == [2, 2]


def test_all_of_a_long_line_are_served_at_once_without_a_deep_stack() -> None:
    shop = Shop()
    waiters = shop.queue(5_000)
    shop.looks = 0
    shop.arrive(6_000)
    assert shop.served == waiters
    assert (shop.looks, len(shop.waiting), shop.waiting.lines) == (5_000, 0, {})


def test_a_waiter_that_does_not_take_everything_leaves_the_rest_to_the_next() -> None:
    shop = Shop()
    first, second, third = shop.queue(3, wants=2)
    shop.arrive(3)
    assert (first.got, second.got, third.got) == (2, 1, 0)


def test_a_woken_waiter_that_is_blocked_keeps_its_place() -> None:
    shop = Shop()
    first, second = shop.queue(2)
    first.blocked = True
    shop.arrive(2)
    assert shop.served == []
    shop.unblock(first)
    assert shop.served == [first, second]


def test_the_wake_up_of_one_that_is_cancelled_goes_to_the_next() -> None:
    shop = Shop()
    first, second, third = shop.queue(3)
    first.blocked = True
    shop.arrive(1)
    assert shop.cancel(first)
    assert shop.served == [second]
    assert shop.cancel(third)
    assert not shop.cancel(third)
    assert shop.waiting.lines == {}


def test_the_cancelled_take_no_room_and_cost_no_search() -> None:
    shop = Shop()
    for waiter in shop.queue(10_000):
        shop.cancel(waiter)
    assert (len(shop.waiting), shop.waiting.lines) == (0, {})


def test_everybody_hears_of_what_is_the_same_for_all() -> None:
    shop = Shop()
    waiters = shop.queue(4)
    waiters[0].blocked = True
    shop.looks = 0
    shop.goods = 1
    shop.waiting.wake_all("goods")
    assert shop.looks == 4
    assert shop.served == [waiters[1]]


def test_a_waiter_that_is_sent_away_does_not_come_back() -> None:
    shop = Shop()
    waiters = shop.queue(3)
    assert shop.waiting.clear() == waiters
    shop.arrive(3)
    assert shop.served == []
    assert not shop.waiting.cancel(waiters[0])


def test_random_histories_of_waiting_forget_no_waiter() -> None:
    """Whenever there are goods, nobody stands first in line but who will be looked at again."""
    for seed in range(300):
        random, shop = Random(seed), Shop()
        known: list[Waiter] = []
        for _ in range(60):
            open_ones = [each for each in known if not (each.got or each.cancelled)]
            match random.randrange(6):
                case 0 | 1:
                    known += shop.queue(1, wants=random.randint(1, 3))
                case 2:
                    shop.arrive(random.randint(1, 3))
                case 3 if open_ones:
                    shop.cancel(random.choice(open_ones))
                case 4 if open_ones:
                    random.choice(open_ones).blocked = True
                case 5 if open_ones:
                    waiter = random.choice(open_ones)
                    if waiter.blocked and shop.waiting.is_looked_at_later(waiter):
                        shop.unblock(waiter)
            line = list(shop.waiting.lines.get("goods", ()))
            if shop.goods and line:
                assert shop.waiting.is_looked_at_later(line[0]), f"seed {seed}"
            assert line == [each for each in known if not (each.got or each.cancelled)]


def test_a_waiter_that_changes_its_line_leaves_the_rest_to_the_next() -> None:
    """It has taken something, and waits until that is written down."""
    shop = Shop()
    one, other, third = shop.queue(3)
    look = shop.waiting._look

    def look_or_pay(call: Any) -> None:
        if call is one and shop.goods:
            shop.goods -= 1
            shop.waiting.park(call, "the till")
        else:
            look(call)

    shop.waiting._look = look_or_pay
    shop.arrive(2)
    assert shop.served == [other]
    assert list(shop.waiting.lines["the till"]) == [one]
    assert list(shop.waiting.lines["goods"]) == [third]
