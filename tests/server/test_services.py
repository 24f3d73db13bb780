"""Services run where the lease is, and leave a range at rest alone."""

from __future__ import annotations

from itertools import pairwise

import pytest

from postroom.errors import StoreCorrupted, TransactionTooLarge
from postroom.kv.clock import HybridLogicalClock, from_seconds, seconds_until
from postroom.messaging.requests import BuryDue, DeliverDue, Moved
from postroom.messaging.services import DELIVER_DUE, EXECUTE_DUE, Mover
from postroom.ranges.garbage import Collector
from postroom.ranges.requests import Collected, CollectGarbage
from postroom.ranges.transactions.one_range import RECORD_SECONDS
from postroom.server import services as supervised
from postroom.server.services import NodeTasks, Services, WakeUp


class World:
    """Time that is moved by hand, and a range that counts what it is asked."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.tasks = NodeTasks(lambda: self.seconds, lambda _: None)
        self.wake_up = WakeUp(self.tasks)
        self.last_commit = 1
        self.next_due = 0
        self.oldest = 0
        self.clock = HybridLogicalClock(
            lambda: round(self.seconds * 1000), lambda: self.seconds, 0, lambda _: True
        )
        self.asked = 0

    async def move(self, _: object) -> Moved:
        self.asked += 1
        return Moved(0, more=False, next_due=self.next_due)

    async def collect(self, _: CollectGarbage) -> Collected:
        self.asked += 1
        return Collected(0, more=False, oldest=self.oldest)

    def pass_(self, seconds: float) -> int:
        """Return how often the range was asked meanwhile."""
        before, end = self.asked, self.seconds + seconds
        self.tasks.run()
        while (due := self.tasks.next_deadline()) is not None and due <= end:
            self.seconds = due
            self.tasks.run()
        self.seconds = end
        return self.asked - before

    def dispatcher(self) -> Mover:
        return Mover(
            DELIVER_DUE, self.move, self.wake_up, lambda due: seconds_until(due, 0),
            lambda: self.last_commit,
        )  # fmt: skip

    def collector(self) -> Collector:
        return Collector(
            self.collect, self.tasks.sleep, self.wake_up, self.clock,
            lambda: self.last_commit, lambda: 60, lambda: 5,
        )  # fmt: skip


def test_a_range_at_rest_is_asked_once_and_has_no_timer() -> None:
    world = World()
    world.tasks.spawn(world.dispatcher().run())
    assert world.pass_(1.0) == 1
    assert world.tasks.next_deadline() is None
    world.wake_up.set()
    assert world.pass_(1000.0) == 0


def test_a_commit_without_a_wake_up_of_its_own_is_found_with_the_next_one() -> None:
    world = World()
    world.tasks.spawn(world.dispatcher().run())
    world.pass_(1.0)
    world.last_commit += 1
    world.wake_up.set()
    assert world.pass_(10.0) == 1


def test_a_scheduled_entry_wakes_the_dispatcher_when_it_is_due_and_not_before() -> None:
    world = World()
    world.next_due = 1 << 40
    world.tasks.spawn(world.dispatcher().run())
    world.pass_(1.0)
    assert world.pass_(10_000.0) == 0
    assert world.pass_(10_000.0) == 1


def test_the_collector_asks_for_nothing_while_nothing_is_old_enough() -> None:
    world = World()
    world.tasks.spawn(world.collector().run())
    world.pass_(1000.0)
    world.oldest, world.last_commit = from_seconds(1000), 2
    world.wake_up.set()
    assert world.pass_(1.0) == 1
    world.pass_(5.0)
    world.last_commit += 1
    world.wake_up.set()
    assert world.pass_(RECORD_SECONDS - 7) == 0, "what was committed meanwhile is younger"
    world.oldest = 0
    assert world.pass_(2.0) == 1


def test_a_wake_up_does_not_shorten_the_wait_of_a_new_leaseholder_for_protections() -> None:
    world = World()
    world.wake_up.set()
    world.tasks.spawn(world.collector().run())
    world.pass_(2.0)
    world.wake_up.set()
    assert world.pass_(2.9) == 0
    assert world.pass_(0.2) == 1


def test_garbage_that_is_protected_keeps_the_collector_going() -> None:
    world = World()
    world.oldest = 1
    world.pass_(100.0)
    world.tasks.spawn(world.collector().run())
    assert world.pass_(50.0) == 10
    world.oldest = 0
    assert world.pass_(5.0) == 1
    assert world.pass_(1000.0) == 0
    assert world.tasks.next_deadline() is None


def test_services_begin_anew_with_each_lease_and_end_with_it() -> None:
    world = World()
    services = Services(world.tasks, {"dispatcher": world.dispatcher().run})
    assert world.pass_(10.0) == 0
    services.start()
    assert world.pass_(10.0) == 1
    services.stop()
    assert not services.running
    world.last_commit += 1
    world.wake_up.set()
    assert world.pass_(100.0) == 0
    services.start()
    assert world.pass_(1.0) == 1


class Failing:
    """A service that fails at once, as often as it is told to."""

    def __init__(self, failures: int) -> None:
        self.begun = 0
        self._failures = failures

    async def run(self) -> None:
        self.begun += 1
        if self.begun <= self._failures:
            raise RuntimeError(f"failure {self.begun}")


def test_a_service_that_fails_begins_again_after_longer_and_longer_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    failing, sound = Failing(12), Failing(0)
    services = Services(world.tasks, {"failing": failing.run, "sound": sound.run})
    services.start()
    world.pass_(0.35)
    assert failing.begun == 3, "after 0.1 s and after 0.2 s more"
    failed, other = services.status()
    assert (failed.running, failed.failures) == (False, 3)
    assert failed.trouble == "RuntimeError: failure 3"
    assert (other.name, other.failures, sound.begun) == ("sound", 0, 1)
    world.pass_(3600.0)
    assert failing.begun == 13
    assert services.status()[0].running
    assert services.status()[0].failures == 12
    assert "begins again in 30 s" in caplog.text
    services.stop()
    assert not any(each.running or each.failures for each in services.status())


def test_a_service_that_was_sound_for_a_while_begins_again_soon() -> None:
    world = World()
    begun: list[float] = []

    async def now_and_then() -> None:
        begun.append(world.seconds)
        await world.tasks.sleep(supervised.SOUND_SECONDS + 1)
        raise RuntimeError

    services = Services(world.tasks, {"now and then": now_and_then})
    services.start()
    world.pass_(1000.0)
    pauses = [later - before for before, later in pairwise(begun)]
    assert max(pauses) < supervised.SOUND_SECONDS + 1.2
    assert services.status()[0].failures == 1


class Poisoned:
    """An outbox whose third entry cannot be moved, whatever it is together with."""

    def __init__(self, error: Exception) -> None:
        self.entries = list("abXcd")
        self.buried: list[str] = []
        self._error = error

    async def __call__(self, request: object) -> object:
        if isinstance(request, BuryDue):
            self.buried.append(self.entries.pop(0) + ": " + request.reason)
            return True
        assert isinstance(request, DeliverDue)
        if "X" in self.entries[: request.messages_max]:
            raise self._error
        moved = len(self.entries[: request.messages_max])
        del self.entries[: request.messages_max]
        return Moved(moved, more=bool(self.entries), next_due=0)


@pytest.mark.parametrize("error", [TransactionTooLarge("too large"), RecursionError("too deep")])
def test_an_entry_that_cannot_be_moved_alone_is_buried_and_the_others_move(
    error: Exception,
) -> None:
    world, poisoned = World(), Poisoned(error)
    service = Mover(DELIVER_DUE, poisoned, world.wake_up, float, lambda: 1)
    world.tasks.spawn(service.run())
    world.tasks.run()
    assert poisoned.entries == []
    assert poisoned.buried == [f"X: {type(error).__name__}: {error}"]


def test_a_damaged_store_buries_nothing() -> None:
    world, poisoned = World(), Poisoned(StoreCorrupted("damaged"))
    services = Services(
        world.tasks,
        {"dispatcher": Mover(DELIVER_DUE, poisoned, world.wake_up, float, lambda: 1).run},
    )
    services.start()
    world.pass_(60.0)
    assert poisoned.buried == []
    (status,) = services.status()
    assert status.failures > 3
    assert "damaged" in status.trouble


def test_the_executor_says_that_an_update_is_to_be_buried() -> None:
    world = World()
    asked: list[object] = []

    async def send(request: object) -> object:
        asked.append(request)
        if isinstance(request, BuryDue):
            return True
        if [each for each in asked if isinstance(each, BuryDue)]:
            return Moved(0, more=False, next_due=0)
        raise TransactionTooLarge("too large")

    world.tasks.spawn(Mover(EXECUTE_DUE, send, world.wake_up, float, lambda: 1).run())
    world.tasks.run()
    assert BuryDue(True, "TransactionTooLarge: too large") in asked
