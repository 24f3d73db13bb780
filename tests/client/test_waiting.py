"""Waiting: for as long as one likes, at the same cost however many do, and nothing stays of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

from postroom.client.routing.router import Router
from postroom.errors import TransactionConflict, TransactionExpired
from postroom.kv.engine import WriteSet
from postroom.messaging.claims import Arrival
from postroom.messaging.requests import EnqueueMessage, ReapQueue
from postroom.ranges.calls import Call
from postroom.ranges.requests import CommitTransaction, GetForUpdate, ReleaseLocks
from postroom.ranges.transactions.one_range import expired
from tests.client.hand_driver import RemoteDriver, Running
from tests.client.stores import Store
from tests.client.watched_engine import CEILING_KEY
from tests.sim import waiting_rules


def send(store: Store, *values: bytes, key: bytes = b"k", **options: Any) -> None:
    with store.db.begin() as tx:
        for value in values:
            tx.enqueue_message(key, value, **options)


def evaluations(store: Store, kind: type) -> list[Any]:
    """Return a list of the requests of a kind that are evaluated from now on."""
    seen: list[Any] = []
    evaluate = store.node.root.replica.registry.reads[kind]

    def counted(view: Any, request: Any) -> Any:
        seen.append(request)
        return evaluate(view, request)

    counted.__self__ = evaluate.__self__  # type: ignore[attr-defined]
    store.node.root.replica.registry.reads[kind] = counted
    return seen


def nothing_is_left(store: Store) -> None:
    waiting_rules.StepRules(store.node).check()
    waiting_rules.check_rest(store.node)


# --- timers, and the cost of a handover


async def consume(store: Store, taken: list[bytes], is_over: Callable[[], bool]) -> None:
    while not is_over():
        async with store.core.begin() as tx:
            for message in await tx.reap_queue(b"k", 1, wait=5):
                taken.append(message.value)
                tx.put(b"done", message.value)


def test_consumers_that_compete_for_minutes_set_no_timers(store: Store) -> None:
    """After 65 s nothing moved any more: each wait had set a timer, and each timer woke all."""
    taken: list[bytes] = []
    over: list[None] = []
    consumers = [store.start(consume(store, taken, lambda: bool(over))) for _ in range(8)]
    looked = evaluations(store, ReapQueue)
    rules = waiting_rules.StepRules(store.node)
    sent = 0
    for _ in range(150):
        for _ in range(4):
            sent += 1
            send(store, b"%d" % sent)
        store.advance(1.0)
        rules.check()
        assert len(taken) == sent
    assert len(looked) < 5 * sent
    over.append(None)
    store.advance(6.0)
    assert all(each.done for each in consumers)
    nothing_is_left(store)


class Waits(Call):
    """A request to the node, made by hand."""

    __slots__ = ("answer", "error")

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.answer: Any = None
        self.error: BaseException | None = None

    def complete(self, result: Any, error: BaseException | None) -> None:
        self.answer, self.error = result, error


def ask(store: Store, request: Any) -> Waits:
    call = Waits(request)
    store.node.replicas.submit(call)
    return call


def id_of(number: int) -> bytes:
    return b"by hand!" + number.to_bytes(8, "big")


def reap(number: int, messages_max: int = 1) -> ReapQueue:
    return ReapQueue(b"k", messages_max, 1 << 20, id_of(number), 60.0, wait=True)


def lock(number: int) -> GetForUpdate:
    return GetForUpdate(b"k", 0, id_of(number), 60.0)


@pytest.mark.parametrize("waiters", [10, 10_000])
def test_a_lock_is_handed_over_at_the_same_cost(waiters: int) -> None:
    store = Store()
    calls = [ask(store, lock(number)) for number in range(waiters)]
    store.driver.settle()
    looked = evaluations(store, GetForUpdate)
    for number in range(5):
        ask(store, ReleaseLocks(id_of(number)))
        assert calls[number + 1].answer is not None
    assert len(looked) == 5 * 2
    assert [call.answer is None for call in calls[6:]] == [True] * (waiters - 6)
    store.db.close()


@pytest.mark.parametrize("waiters", [10, 10_000])
def test_a_message_is_handed_over_at_the_same_cost(waiters: int) -> None:
    store = Store()
    calls = [ask(store, reap(number)) for number in range(waiters)]
    store.driver.settle()
    looked = evaluations(store, ReapQueue)
    for number in range(5):
        send(store, b"%d" % number)
        assert calls[number].answer is not None
    assert len(looked) == 5 * 2
    store.db.close()


# --- no wake-up is lost


def test_a_reaper_that_takes_a_part_leaves_the_rest_to_the_next() -> None:
    store = Store()
    first, second, third = (ask(store, reap(number, messages_max=2)) for number in range(3))
    send(store, b"1", b"2", b"3")
    assert [len(call.answer.messages) for call in (first, second)] == [2, 1]
    assert third.answer is None
    store.db.close()


def test_a_message_of_one_that_was_cancelled_while_it_was_woken_goes_to_the_next() -> None:
    """It was woken, could not be looked at as a write was under way, and gave up then."""
    store = Store()
    holder, first, second = (ask(store, reap(number)) for number in range(3))
    send(store, b"1")
    assert holder.answer is not None

    def meanwhile(_: Any) -> None:
        store.engine.before_write = lambda _: None
        ask(store, ReleaseLocks(id_of(0)))  # it wakes the first, which is blocked
        assert store.node.root.replica.waiting.is_looked_at_later(first)
        assert store.node.replicas.cancel(first)

    store.engine.before_write = meanwhile
    send(store, b"2")
    assert (first.answer, first.error) == (None, None)
    assert len(second.answer.messages) == 1
    store.db.close()


def test_a_commit_hands_the_lock_to_the_first_waiter(store: Store) -> None:
    order: list[int] = []

    async def work(number: int) -> None:
        async with store.core.begin() as tx:
            await tx.get_for_update(b"k")
            order.append(number)
            tx.put(b"k", b"%d" % number)

    running = [store.start(work(number)) for number in range(20)]
    store.advance(1.0)
    assert all(each.done for each in running)
    assert order == list(range(20))
    nothing_is_left(store)


class Chance:
    """A random client that does anything that clients may do, in the middle of writes too."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = Store(lease_seconds=1.0)
        self.known: list[Waits] = []
        self._busy = False
        self.store.engine.before_write = self._meanwhile

    def act(self) -> None:
        store, choose = self.store, self.random.choice
        number = len(self.known)
        waiting = [call for call in self.known if not (call.answer or call.error or call.cancelled)]
        match self.random.randrange(7):
            case 0 | 1:
                self.known.append(ask(store, reap(number, choose([1, 2]))))
            case 2:
                self.known.append(ask(store, lock(number)))
            case 3:
                self._send()
            case 4 if waiting:
                store.node.replicas.cancel(choose(waiting))
            case 5 if number:
                ask(store, ReleaseLocks(id_of(self.random.randrange(number))))
            case 6 if not self._busy:
                store.clock.seconds += choose([0.1, 2.0, 70.0])

    def _send(self) -> None:
        writes: list[Any] = [EnqueueMessage(b"k", b"m")] * self.random.randint(1, 3)
        began, id_ = self.store.node.clock.reading(), self.random.randbytes(16)
        ask(self.store, CommitTransaction(id_, began, 60.0, 0, b"k", [], [], writes))

    def _meanwhile(self, writes: WriteSet) -> None:
        if not self._busy and CEILING_KEY not in writes:
            self._busy = True
            for _ in range(self.random.randrange(4)):
                self.act()
            self._busy = False


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_leave_no_waiter_behind_a_free_key(seed: int) -> None:
    """Arrivals, cancellations, ends, expiries and lapsed leases."""
    chance = Chance(seed)
    store = chance.store
    rules = waiting_rules.StepRules(store.node)
    for _ in range(250):
        chance.act()
        if chance.random.random() < 0.7:
            store.driver.settle()
        rules.check()
    store.engine.before_write = lambda _: None
    for call in chance.known:
        store.node.replicas.cancel(call)
    store.driver.settle()
    store.advance(61.0)
    nothing_is_left(store)
    store.db.close()


# --- giving up, vanishing


def test_waiters_that_give_up_leave_no_memory_behind(store: Store) -> None:
    async def give_up(number: int) -> None:
        async with store.core.begin(timeout=1.0) as tx:
            with pytest.raises(TransactionConflict, match="did not end in time"):
                await tx.get_for_update(b"key")
        async with store.core.begin(timeout=1.0) as tx:
            assert not await tx.reap_queue(b"box %d" % number, wait=1.0)

    with store.db.begin() as holder:
        holder.get_for_update(b"key")
        running = [store.start(give_up(number)) for number in range(500)]
        assert len(store.node.root.replica.waiting_for[b"key"]) == 500
        store.advance(5.0)
    for each in running:
        each.result()
    assert store.node.root.replica.waiting_for == {}
    nothing_is_left(store)


def test_cancelled_waits_leave_nothing() -> None:
    store = Store()
    calls = [ask(store, reap(number)) for number in range(500)]
    calls += [ask(store, ReapQueue(b"%d" % n, 1, 1, id_of(n), 60.0, wait=True)) for n in range(500)]
    assert all(store.node.replicas.cancel(call) for call in calls)
    assert not any(store.node.replicas.cancel(call) for call in calls)
    assert store.node.root.replica.waiting_for == {}
    nothing_is_left(store)
    store.db.close()


def test_locks_of_those_who_vanished_are_gone_when_their_time_is_over(store: Store) -> None:
    for number in range(300):
        store.db.begin(timeout=10).get_for_update(b"%d" % number)
    assert store.node.sizes()["locks"] == 300
    store.advance(9.0)
    assert store.node.sizes()["locks"] == 300
    store.advance(1.1)
    nothing_is_left(store)


def test_a_wall_clock_that_is_set_back_holds_up_nobody(store: Store) -> None:
    send(store, b"m")
    tx = store.db.begin(timeout=10)
    tx.reap_queue(b"k")
    tx.get_for_update(b"key")
    waits = store.start(store.core.begin().reap_queue(b"k", wait=30))
    other = store.core.begin()
    locks = store.start(other.get_for_update(b"key"))
    store.clock.epoch_milliseconds -= 3_600_000
    store.advance(9.0)
    assert not waits.done
    store.advance(1.5)
    assert [message.value for message in waits.result()] == [b"m"]
    locks.result()


# --- how long


@pytest.mark.parametrize("wait", [60, 61.5, 7200, 9000.0])
def test_a_worker_waits_as_long_as_it_likes(store: Store, wait: float) -> None:
    """From 60 s on it ended in ``TransactionExpired``: an idle worker died."""
    store.db.put(b"state", b"old")

    async def work(tx: Any) -> list[bytes]:
        taken = [message.value for message in await tx.reap_queue(b"k", wait=wait)]
        state = await tx.get(b"state")
        tx.put(b"state", b"new")
        return [*taken, state]

    waits = store.start(store.core.run(work))
    store.advance(wait - 1)
    store.db.put(b"state", b"newer")
    send(store, b"m")
    assert waits.result() == [b"m", b"newer"]
    assert store.db.get(b"state") == b"new"
    nothing_is_left(store)


@pytest.mark.parametrize("wait", [math.inf, 1e300, 10**400])
def test_a_wait_without_an_end(store: Store, wait: float) -> None:
    waits = store.start(store.core.begin().reap_queue(b"k", wait=wait))
    store.advance(2000.0)
    send(store, b"m")
    assert [message.value for message in waits.result()] == [b"m"]


@pytest.mark.parametrize("wait", [-1, -0.001, math.nan, -math.inf])
def test_a_negative_wait_is_refused(store: Store, wait: float) -> None:
    with pytest.raises(ValueError, match="wait is a number of seconds from 0 on"):
        store.db.begin().reap_queue(b"k", wait=wait)


@pytest.mark.parametrize("wait", [True, "5", [1]])
def test_a_wait_of_another_type_is_refused(store: Store, wait: Any) -> None:
    with pytest.raises(TypeError, match="wait is a number of seconds or None"):
        store.db.begin().reap_queue(b"k", wait=wait)


def test_the_time_that_is_left_after_the_wait_is_the_whole_time(store: Store) -> None:
    tx = store.core.begin(timeout=5)
    store.advance(4.0)
    waits = store.start(tx.reap_queue(b"k", wait=100))
    store.advance(50.0)
    send(store, b"m")
    assert waits.done
    store.advance(4.5)
    other = store.db.begin()
    assert not other.reap_queue(b"k"), "it is held as long as the transaction may be open"
    tx.put(b"done", b"yes")
    store.driver.run(tx.commit())
    late = store.core.begin(timeout=5)
    waits = store.start(late.reap_queue(b"k", wait=100))
    store.advance(50.0)
    send(store, b"n")
    store.advance(5.1)
    with pytest.raises(TransactionExpired, match="give begin\\(\\) a longer timeout"):
        store.driver.run(late.commit())
    assert [message.value for message in store.db.begin().reap_queue(b"k")] == [b"n"]


def test_a_transaction_with_reads_does_not_wait_beyond_their_history(store: Store) -> None:
    """Its reads would be older than what garbage collection leaves to check them by."""
    store.db.put(b"a", b"1")
    tx = store.core.begin()
    store.driver.run(tx.get(b"a"))
    began = store.clock.seconds
    waits = store.start(tx.reap_queue(b"k", wait=3600))
    store.advance(61.0)
    with pytest.raises(TransactionConflict, match="wait for messages first"):
        waits.result()
    assert store.clock.seconds - began == pytest.approx(61.0)
    short = store.core.begin()
    store.driver.run(short.get(b"a"))
    assert not list(store.driver.run(short.reap_queue(b"k", wait=5)))
    short.put(b"b", b"2")
    store.driver.run(short.commit())


def test_a_worker_that_reads_first_begins_anew_and_lives_on(store: Store) -> None:
    tries = 0

    async def work(tx: Any) -> list[bytes]:
        nonlocal tries
        tries += 1
        await tx.get(b"state")
        return [message.value for message in await tx.reap_queue(b"k", wait=1000)]

    waits = store.start(store.core.run(work))
    store.advance(600.0)
    assert not waits.done
    assert tries == 10
    send(store, b"m")
    store.advance(1.0)
    assert waits.result() == [b"m"]


def test_a_conflict_after_an_hour_of_waiting_is_retried(store: Store) -> None:
    tries = 0

    async def work(tx: Any) -> None:
        nonlocal tries
        tries += 1
        taken = await tx.reap_queue(b"k", wait=3600)
        await tx.get(b"state")
        if tries == 1:
            await store.core.put(b"state", b"changed")
        tx.put(b"state", taken[0].value)

    waits: Running[None] = store.start(store.core.run(work))
    store.advance(3500.0)
    send(store, b"m")
    store.advance(5.0)
    waits.result()
    assert (tries, store.db.get(b"state")) == (2, b"m")


# --- a client elsewhere


def test_a_router_keeps_nothing_of_requests_that_were_answered() -> None:
    store = Store(remote=True)
    assert isinstance(store.driver, RemoteDriver)
    router: Router = store.driver.router
    for number in range(200):
        send(store, b"%d" % number)
        with store.db.begin() as tx:
            assert len(tx.reap_queue(b"k", wait=3600)) == 1
    assert router._pending.timed.entries < 30
    assert not router._lanes.holds()
    store.db.close()


def test_a_client_that_is_busy_is_not_taken_for_dead() -> None:
    store = Store(remote=True)
    send(store, b"m")
    tx = store.db.begin()
    tx.reap_queue(b"k")
    tx.get_for_update(b"key")
    store.advance(50.0)
    assert store.node.sizes()["claims"] == 1
    tx.put(b"done", b"yes")
    tx.commit()
    nothing_is_left(store)
    store.db.close()


def test_the_holdings_of_a_client_that_is_cut_off_are_free_after_five_seconds() -> None:
    store = Store(remote=True)
    assert isinstance(store.driver, RemoteDriver)
    send(store, b"m")
    tx = store.db.begin()
    tx.reap_queue(b"k")
    tx.get_for_update(b"key")
    protected = store.core.snapshot()
    store.driver.run(protected.__aenter__())
    other = ask(store, reap(1))
    store.driver.cut = True
    store.advance(4.0)
    assert other.answer is None
    store.advance(1.7)
    assert len(other.answer.messages) == 1
    sizes = store.node.sizes()
    assert (sizes["locks"], sizes["claims"], sizes["protections"]) == (0, 1, 0)
    store.db.close()


def test_the_token_of_a_line_is_what_it_waits_for() -> None:
    store = Store()
    ask(store, reap(1))
    ask(store, lock(1))
    ask(store, lock(2))
    assert set(store.node.root.replica.waiting_for) == {Arrival(b"k"), b"k"}
    store.db.close()


def test_advice_is_within_the_limit() -> None:
    assert "longer timeout" not in str(expired(60.0))
    assert "60 s at most" in str(expired(10.0))
