"""Services run where the lease is, and leave a range at rest alone."""

from __future__ import annotations

from postroom.messaging.requests import Moved
from postroom.messaging.services import Mover, dispatcher
from postroom.ranges.garbage import Collector
from postroom.ranges.requests import Collected, CollectGarbage
from postroom.server.services import Services
from postroom.server.tasks import Signal, Tasks


class World:
    """Time that is moved by hand, and a range that counts what it is asked."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.tasks = Tasks(lambda: self.seconds, lambda: None)
        self.signal = Signal(self.tasks)
        self.last_commit = 1
        self.next_due = 0
        self.left = False
        self.asked = 0

    async def move(self, _: object) -> Moved:
        self.asked += 1
        return Moved(0, more=False, next_due=self.next_due)

    async def collect(self, _: CollectGarbage) -> Collected:
        self.asked += 1
        return Collected(0, more=False, left=self.left)

    def pass_(self, seconds: float) -> int:
        """How often the range was asked meanwhile."""
        before, end = self.asked, self.seconds + seconds
        self.tasks.run()
        while (due := self.tasks.next_deadline()) is not None and due <= end:
            self.seconds = due
            self.tasks.run()
        self.seconds = end
        return self.asked - before

    def dispatcher(self) -> Mover:
        return dispatcher(self.move, self.signal, lambda: 0, lambda: self.last_commit, 5.0)

    def collector(self) -> Collector:
        return Collector(self.collect, self.tasks.sleep, lambda: 0, lambda: self.last_commit, 60, 5)


def test_a_range_at_rest_is_asked_once() -> None:
    world = World()
    world.tasks.spawn(world.dispatcher().run())
    assert world.pass_(1.0) == 1
    assert world.pass_(1000.0) == 0


def test_a_lost_wake_up_is_made_good_by_polling() -> None:
    world = World()
    world.tasks.spawn(world.dispatcher().run())
    world.pass_(1.0)
    world.last_commit += 1
    assert world.pass_(10.0) == 1


def test_what_is_scheduled_keeps_it_polling() -> None:
    world = World()
    world.next_due = 1 << 40
    world.tasks.spawn(world.dispatcher().run())
    world.pass_(1.0)
    assert world.pass_(50.0) == 10


def test_garbage_that_is_left_keeps_the_collector_going() -> None:
    world = World()
    world.left = True
    world.tasks.spawn(world.collector().run())
    assert world.pass_(50.0) == 10
    world.left = False
    assert world.pass_(5.0) == 1
    assert world.pass_(1000.0) == 0
    world.last_commit += 1
    assert world.pass_(50.0) == 1


def test_services_begin_anew_with_each_lease_and_end_with_it() -> None:
    world = World()
    world.next_due = 1 << 40
    services = Services(world.tasks, [world.dispatcher().run])
    assert world.pass_(10.0) == 0
    services.start()
    assert world.pass_(10.0) == 3
    services.stop()
    assert not services.running
    world.last_commit += 1
    world.signal.set()
    assert world.pass_(100.0) == 0
    services.start()
    assert world.pass_(1.0) == 2, "at its beginning, and for the signal that nobody had heard"
