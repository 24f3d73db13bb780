"""The calls of a queue in a store of several ranges: they are what they are in one range."""

from __future__ import annotations

from collections.abc import AsyncIterable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

import postroom
from postroom.client.database import CoreDatabase
from postroom.client.queues.messages import QueueMessage
from postroom.client.queues.queue import Queue
from postroom.errors import AccessDenied, Invalid, LeaseLost, Unavailable
from postroom.ranges.access import GrantRights
from postroom.ranges.contract import Role
from postroom.ranges.rights import Verb
from postroom.server.cluster.access import Access
from tests.client.hand_driver import Running
from tests.client.stores import Store
from tests.client.worker.running import Running as RunningWorker
from tests.remote.streams import DatabaseOverStreams
from tests.remote.test_splits import SplitNodes
from tests.server.hosting import ThreeNodes, cut

T = TypeVar("T")

CUTS = (b"m", b"x")
IDS = ("a", "n", "y", "b", "o", "z")
"""Ids of messages of three ranges, in the order in which they are enqueued."""


class Client:
    """A client of a store with three ranges, driven by hand.

    Args:
        store: the store, or the streams to three nodes.
        db: the database.
    """

    def __init__(self, store: Any, db: CoreDatabase) -> None:
        self.store = store
        self.db = db

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine."""
        if isinstance(self.store, Store):
            return self.store.driver.run(coroutine)
        result: T = self.store.run(coroutine)
        return result

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Running[T]:
        """Run a coroutine as far as it goes without the clock."""
        running: Running[T] = self.store.start(coroutine)
        self.pass_time(0.01, running)
        return running

    def pass_time(self, seconds: float, *running: Running[Any]) -> None:
        """Let a time pass in which coroutines go on."""
        if isinstance(self.store, Store):
            self.store.advance(seconds)
            return
        end = self.store.monotonic() + seconds
        self.store.until(
            lambda: self.store.go_on(*running) is None or self.store.monotonic() >= end,
            seconds + 1.0,
        )

    def queue(self, name: str = "q", **settings: Any) -> Queue:
        """Make a queue."""
        return self.run(self.db.create_queue(name, **settings))

    def enqueue(self, *ids: str, queue: str = "q", **said: Any) -> None:
        """Enqueue messages in this order, each in a transaction of its own."""

        async def enqueue() -> None:
            for id_ in ids:
                async with self.db.begin() as tx:
                    tx.enqueue(queue, id_.encode(), id=id_, **said)

        self.run(enqueue())


@pytest.fixture(params=["embedded", "remote", "three nodes"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Yield a client: of a store here, beyond a wire, or of three nodes that lead a range each."""
    if request.param != "three nodes":
        store = Store(remote=request.param == "remote")
        store.db.put(b"k", b"")
        cut(store.node, *CUTS)
        store.driver.settle()
        yield Client(store, store.core)
        store.db.close()
        return
    nodes = ThreeNodes(*CUTS)
    for range_id in nodes.range_ids:
        nodes.lead(range_id, range_id)
    streams = DatabaseOverStreams(nodes)
    yield Client(streams, streams.db)
    nodes.close()


def ids(messages: list[QueueMessage]) -> list[Any]:
    return [message.id for message in messages]


async def every(messages: AsyncIterable[T]) -> list[T]:
    return [each async for each in messages]


# --- claims


def test_a_claim_after_a_commit_finds_its_messages_wherever_they_lie(client: Client) -> None:
    queue = client.queue(ack_wait=60.0)

    async def found(number: int) -> int:
        async with client.db.begin() as tx:
            tx.put(b"a", b"%d" % number)
            for key in (b"b", b"n", b"z"):
                tx.enqueue("q", b"", key=key)
                tx.enqueue("q", b"", key=key, id=f"{'aox'[number % 3]} {key!r} {number}")
        assert (await queue.stats()).ready == 6
        messages = await queue.claim(10)
        async with client.db.begin() as tx:
            for message in messages:
                tx.acknowledge("q", message)
        return len(messages)

    assert [client.run(found(number)) for number in range(6)] == [6] * 6


def test_a_claim_gets_the_messages_of_all_ranges(client: Client) -> None:
    q = client.queue()
    client.enqueue(*IDS)
    assert sorted(ids(client.run(q.claim(10)))) == sorted(IDS)
    assert client.run(q.claim(10)) == []


def test_claims_of_one_message_each_get_all(client: Client) -> None:
    q = client.queue()
    client.enqueue(*IDS)
    found = [client.run(q.claim(1, wait=1)) for _ in IDS]
    assert sorted(each.id for (each,) in found) == sorted(IDS)


@pytest.mark.parametrize("id_", ["a", "n", "y"])
def test_a_waiting_claim_is_given_a_message_of_any_range(client: Client, id_: str) -> None:
    q = client.queue()
    waits = client.start(q.claim(10, wait=60))
    client.pass_time(1.0, waits)
    assert not waits.done
    client.enqueue(id_)
    client.pass_time(0.5, waits)
    assert ids(waits.result()) == [id_]
    assert client.run(q.stats()).leased == 1


def test_a_claim_in_vain_ends_after_its_time(client: Client) -> None:
    q = client.queue()
    waits = client.start(q.claim(10, wait=2))
    client.pass_time(3.0, waits)
    assert waits.result() == []
    client.enqueue("n")
    client.pass_time(0.5)
    assert client.run(q.stats()).ready == 1, "nobody waits any more"


def test_messages_that_two_ranges_give_to_one_claim_are_fired_once_each(client: Client) -> None:
    q = client.queue()
    waits = client.start(q.claim(1, wait=60))

    async def enqueue() -> None:
        async with client.db.begin() as tx:
            for id_ in ("a", "n", "y"):
                tx.enqueue("q", b"", id=id_)

    client.run(enqueue())
    client.pass_time(1.0, waits)
    (first,) = waits.result()
    others = client.run(q.claim(10))
    assert sorted([first.id, *ids(others)]) == ["a", "n", "y"]
    assert [each.epoch for each in (first, *others)] == [0, 0, 0]


def test_a_selection_of_keys_takes_messages_wherever_they_lie(client: Client) -> None:
    q = client.queue()
    client.enqueue("1", key=b"b")
    client.enqueue("2", key=b"n")
    client.enqueue("3", key=b"n", group="a group")
    client.enqueue("4", key=b"z")
    assert sorted(ids(client.run(q.claim(10, start=b"m", end=b"x")))) == ["2", "3"]
    assert client.run(q.claim(10, start=b"x", end=b"m")) == []
    assert ids(client.run(q.claim(10, kinds=["none"]))) == []


def test_a_stream_of_messages_with_the_end_before_the_start_has_none(client: Client) -> None:
    q = client.queue()
    client.enqueue(*IDS)
    found = client.start(every(q.receive(start=b"x", end=b"b", timeout=1.0)))
    client.pass_time(2.0, found)
    assert found.result() == []


def test_a_stream_gives_the_messages_of_all_ranges(client: Client) -> None:
    q = client.queue()

    async def consume() -> list[Any]:
        found = []
        async for message in q.receive(timeout=2.0):
            found.append(message.id)
            await message.acknowledge()
        return found

    running = client.start(consume())
    for id_ in IDS:
        client.enqueue(id_)
        client.pass_time(0.2, running)
    client.pass_time(3.0, running)
    assert sorted(running.result()) == sorted(IDS)
    stats = client.run(q.stats())
    assert (stats.done, stats.leased, stats.fired) == (6, 0, 6)


def test_a_transaction_claims_and_acknowledges_in_all_ranges(client: Client) -> None:
    q = client.queue()
    client.enqueue(*IDS)

    async def work(*, commits: bool) -> list[Any]:
        tx = client.db.begin()
        found = await tx.claim("q", 10)
        tx.put(b"done", b"yes")
        await (tx.commit() if commits else tx.rollback())
        return ids(found)

    assert sorted(client.run(work(commits=False))) == sorted(IDS)
    client.pass_time(0.5)
    assert client.run(q.stats()).ready == 6
    assert sorted(client.run(work(commits=True))) == sorted(IDS)
    client.pass_time(0.1)
    assert client.run(q.stats()).done == 6


# --- settling


def test_messages_of_several_ranges_are_settled_together(client: Client) -> None:
    q = client.queue(min_backoff=1.0)
    client.enqueue(*IDS)
    found = client.run(q.claim(10))
    assert client.run(q.acknowledge(found[:2])) == 2
    assert client.run(q.reject(found[2:3], dead=True, reason="no")) == 1
    assert client.run(q.reject(found[3:4], 0)) == 1
    assert client.run(q.release(found[4:])) == 2
    stats = client.run(q.stats())
    assert (stats.done, stats.dead, stats.ready, stats.leased) == (2, 1, 3, 0)
    with pytest.raises(LeaseLost):
        client.run(found[0].acknowledge())


def test_a_lease_is_extended_in_any_range(client: Client) -> None:
    q = client.queue(ack_wait=10)
    client.enqueue("a", "n", "y")
    found = client.run(q.claim(10))
    for message in found:
        until = client.run(message.extend(100))
        assert until == message.leased_until
    assert sorted(ids(client.run(q.messages("leased")))) == ["a", "n", "y"]


def test_messages_are_settled_by_their_ids_wherever_they_lie(client: Client) -> None:
    q = client.queue()
    client.enqueue("1", key=b"n")
    client.enqueue("2", group="y")
    client.enqueue("3", key=b"b")
    client.enqueue("4")
    found = client.run(q.get("2"))
    assert found is not None
    assert (found.group, found.state) == ("y", "ready")
    assert client.run(q.get("5")) is None
    client.run(q.claim(10))
    assert client.run(q.acknowledge(["1", "2", "none"])) == 2
    assert client.run(q.reject(["3"], dead=True)) == 1
    assert client.run(q.cancel("4")) == 1
    assert ids(client.run(q.dead_letters())) == ["3"]
    assert client.run(q.replay(["3"])) == 1
    assert client.run(q.reschedule("3", deliver_at=60)) == 1
    assert ids(client.run(q.messages("scheduled"))) == ["3"]


def test_a_transaction_names_messages_by_ids(client: Client) -> None:
    q = client.queue()
    client.enqueue("1", key=b"n")
    client.run(q.claim(10))

    async def settle() -> None:
        async with client.db.begin() as tx:
            tx.acknowledge("q", ["1"])

    client.run(settle())
    assert ids(client.run(q.messages("done"))) == ["1"]


# --- looking


def test_messages_of_all_ranges_are_listed_in_one_order(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = client.queue()
    client.enqueue(*IDS)
    for size in (1, 2, 1000):
        monkeypatch.setattr("postroom.client.queues.queue.MESSAGES_PER_PAGE", size)
        assert ids(client.run(q.messages("ready"))) == [*IDS]
        assert ids(client.run(every(q.scan()))) == [*IDS]
        assert ids(client.run(q.messages(limit=4))) == [*IDS[:4]]


def test_done_messages_are_told_in_the_order_of_their_ends(client: Client) -> None:
    q = client.queue(archive=True)
    client.enqueue(*IDS)
    found = {message.id: message for message in client.run(q.claim(10))}
    for id_ in reversed(IDS):
        client.run(found[id_].acknowledge())
        client.pass_time(0.01)
    archived = client.run(every(q.archive()))
    assert ids(archived) == [*reversed(IDS)]
    third = archived[2].done_at
    assert ids(client.run(every(q.archive(third)))) == [*reversed(IDS)][2:]
    now = client.run(_now(client.db))
    assert ids(client.run(every(q.archive(at=now)))) == [*reversed(IDS)]


async def _now(db: CoreDatabase) -> Any:
    now = db.now()
    return now if isinstance(now, int) else await now


def test_the_past_of_all_ranges_is_told(client: Client) -> None:
    q = client.queue()
    client.enqueue(*IDS)
    then = client.run(_now(client.db))
    client.run(q.acknowledge(client.run(q.claim(10))))
    assert sorted(ids(client.run(q.messages(at=then)))) == sorted(IDS)
    assert client.run(q.messages()) == []


def test_the_archive_of_all_ranges_is_trimmed(client: Client) -> None:
    q = client.queue(archive=True)
    client.enqueue(*IDS)
    client.run(q.acknowledge(client.run(q.claim(10))))
    until = client.run(_now(client.db))
    client.pass_time(200.0)
    assert client.run(q.trim_archive(until, limit=1)) >= 1
    client.run(q.trim_archive(until))
    assert client.run(every(q.archive())) == []
    assert client.run(q.stats()).archived == 0


def test_statistics_are_sums_over_all_ranges(client: Client) -> None:
    q = client.queue()
    client.enqueue(*IDS)
    stats = client.run(q.stats())
    assert (stats.ready, stats.enqueued, stats.leased) == (6, 6, 0)
    client.run(q.claim(4))
    stats = client.run(q.stats())
    assert (stats.ready, stats.fired, stats.leased) == (2, 4, 4)
    assert stats.longest_held is not None


def test_settings_count_in_all_ranges(client: Client) -> None:
    q = client.queue()
    client.enqueue(*IDS)
    client.run(q.pause())
    client.pass_time(1.0)
    assert client.run(q.claim(10)) == []
    client.run(q.resume())
    client.pass_time(1.0)
    assert len(client.run(q.claim(10))) == 6
    assert [info.name for info in client.run(_queues(client.db))] == ["q"]
    client.run(q.drop())
    client.pass_time(1.0)
    for call in (q.stats, q.messages, q.claim):
        with pytest.raises(Invalid, match="there is no queue"):
            client.run(call())


async def _queues(db: CoreDatabase) -> list[Any]:
    return await db.queues()


def test_a_consumer_that_waits_is_told_that_its_queue_was_dropped(client: Client) -> None:
    q = client.queue()
    running = client.start(q.claim(1, wait=60))
    client.run(q.drop())
    client.pass_time(3.0, running)
    with pytest.raises(Invalid):
        running.result()


# --- workers, results, groups


def test_results_are_told_wherever_their_messages_lie(client: Client) -> None:
    q = client.queue(purge_after=5.0)

    async def enqueue() -> list[Any]:
        async with client.db.begin() as tx:
            return [
                tx.enqueue("q", b"", id="1", key=b"y"),
                tx.enqueue("q", b"", id="2", group="a group"),
                tx.enqueue("q", b""),
            ]

    handles = client.run(enqueue())
    waits = [client.start(handle.result(wait=60)) for handle in handles]

    async def work(message: QueueMessage) -> None:
        async with client.db.begin() as tx:
            tx.queues.keep_result(message, 1000.0, b"of " + message.payload)
            tx.acknowledge("q", [message])

    found = client.run(q.claim(10, wait=5))
    while len(found) < 3:
        found += client.run(q.claim(10, wait=5))
    for message in found:
        client.run(work(message))
    client.pass_time(3.0, *waits)
    assert [each.result() for each in waits] == [b"of "] * 3
    assert client.run(q.result("1")) == b"of "
    assert [each.id for each in client.run(every(q.results("a group")))] == ["2"]
    client.pass_time(100.0)
    assert client.run(q.get("1")) is None, "the message is gone, and its result is not"
    assert client.run(q.result("1")) == b"of "
    with pytest.raises(Invalid):
        client.run(q.result("none"))


def test_a_schedule_enqueues_once_at_each_tick(client: Client) -> None:
    q = client.queue()
    client.run(q.schedule("tick", cron="* * * * *", payload=b"", group="y"))
    assert [each.name for each in client.run(q.schedules())] == ["tick"]
    client.pass_time(150.0)
    assert client.run(q.stats()).enqueued in {2, 3}


# --- while ranges split


@pytest.mark.parametrize("is_here", [True, False])
def test_a_waiting_claim_is_given_messages_of_ranges_that_have_split_meanwhile(
    *, is_here: bool
) -> None:
    nodes = None if is_here else SplitNodes()
    store: Any = Store() if nodes is None else DatabaseOverStreams(nodes)
    client = Client(store, store.core if is_here else store.db)
    q = client.queue()
    waits = [client.start(q.claim(1, wait=1000)) for _ in range(3)]
    for at, id_ in ((b"m", "z"), (b"t", "o"), (b"c", "a")):
        client.run(client.db.split(at))
        client.pass_time(1.0, *waits)
        assert sum(running.done for running in waits) == client.run(q.stats()).leased
        client.enqueue(id_)
        client.pass_time(1.0, *waits)
    assert sorted(each.id for running in waits for each in running.result()) == ["a", "o", "z"]
    assert {each.epoch for running in waits for each in running.result()} == {0}
    assert client.run(q.stats()).leased == 3
    (nodes or store.db).close()


# --- many consumers


def test_a_thousand_consumers_of_twenty_ranges_are_given_each_message_once() -> None:
    store = Store()
    cuts = [b"%02d" % number for number in range(1, 20)]
    cut(store.node, *cuts)
    store.driver.settle()
    client = Client(store, store.core)
    q = client.queue(ack_wait=600)
    found: list[QueueMessage] = []

    async def consume() -> None:
        found.extend(await q.claim(1, wait=3600))

    for _ in range(1000):
        store.driver.later(consume())
    store.driver.settle()
    assert store.node.replicas.sizes()["queue waits"] == 1000
    names = [f"{number % 20:02d}/{number}" for number in range(100)]
    client.enqueue(*names)
    client.pass_time(1.0)
    assert sorted(message.id for message in found) == sorted(names)
    assert {message.epoch for message in found} == {0}
    assert store.node.replicas.sizes()["queue waits"] == 900
    for running in list(store.driver._running):
        store.driver.cancel(running)
    client.pass_time(1.0)
    assert not store.node.replicas.sizes()["queue waits"]
    assert client.run(q.stats()).leased == 100
    store.db.close()


# --- threads


def test_workers_carry_out_the_tasks_of_all_ranges() -> None:
    with postroom.open(":memory:") as db:
        for at in CUTS:
            db.split(at)
        worker = postroom.Worker(db)

        @worker.task(queue="q", keep_result=60)
        def task(message: Any, tx: Any) -> bytes:
            tx.put(b"done/" + message.payload, b"yes")
            return bytes(message.payload)

        db.create_queue("q")
        with db.begin() as tx:
            handles = [task.enqueue(tx, id_.encode(), id=id_, group=id_) for id_ in IDS]
        with RunningWorker(worker):
            results = [handle.result(wait=30) for handle in handles]
        assert results == [id_.encode() for id_ in IDS]
        assert [key for key, _ in db.scan(b"done/", b"done0")] == [
            b"done/" + id_.encode() for id_ in sorted(IDS)
        ]
        assert db.queue("q").stats().done == len(IDS)


def test_a_new_queue_can_be_used_in_all_ranges_at_once() -> None:
    with postroom.open(":memory:") as db:
        for at in CUTS:
            db.split(at)
        for number in range(10):
            name = f"queue {number}"
            q = db.create_queue(name)
            assert q.stats().ready == 0
            with db.begin() as tx:
                tx.enqueue(name, b"", id="z")
            (message,) = q.claim(2, wait=5)
            message.acknowledge()
        with pytest.raises(Invalid, match="there is no queue 'none'"):
            db.queue("none").stats()


# --- clients of several nodes that fail


def three_nodes() -> tuple[ThreeNodes, Client, Client]:
    """Return nodes that lead a range each, and two clients of theirs."""
    nodes = ThreeNodes(*CUTS)
    for range_id in nodes.range_ids:
        nodes.lead(range_id, range_id)
    streams = [DatabaseOverStreams(nodes, seed) for seed in (3, 4)]
    first, second = (Client(each, each.db) for each in streams)
    return nodes, first, second


def test_a_consumer_that_vanishes_between_the_answers_of_two_nodes_holds_nothing() -> None:
    nodes, gone, other = three_nodes()
    q = other.queue()
    running = gone.start(gone.db.queue("q").claim(1, wait=60))
    gone.pass_time(0.1, running)
    other.enqueue("a", "n", "y")  # the other client carries no frame of this one meanwhile
    other.pass_time(0.5)
    assert not running.done
    stats = other.run(q.stats())
    assert stats.leased == 3, "three ranges have answered one claim"
    other.pass_time(8.0)
    found = other.run(q.claim(10, wait=10))
    found += other.run(q.claim(10)) if len(found) < 3 else []
    assert sorted(ids(found)) == ["a", "n", "y"]
    assert {message.epoch for message in found} == {1}
    nodes.close()


def test_a_claim_whose_link_is_lost_gets_the_message_that_it_was_given() -> None:
    nodes, first, other = three_nodes()
    q = other.queue()
    running = first.start(first.db.queue("q").claim(1, wait=60))
    first.pass_time(0.1, running)
    other.enqueue("n")
    other.pass_time(0.5)
    assert other.run(q.stats()).leased == 1
    store = first.store
    for link in [each.number for each in store.router._links.values() if each.node_id == 2]:
        store._open.pop(link).close()  # with the answer
        store.router.disconnected(link, Unavailable("reset"))
    first.pass_time(2.0, running)
    assert ids(running.result()) == ["n"]
    assert [message.epoch for message in running.result()] == [0]
    nodes.close()


class WorkerStreams(DatabaseOverStreams):
    """A client that has only the rights granted to its name."""

    def open(self, link: int, address: str) -> None:
        self._access = Access(Role.NONE, name="worker")
        super().open(link, address)


def test_a_client_with_rights_on_a_queue_alone_works_in_all_ranges() -> None:
    nodes, _, other = three_nodes()
    q = other.queue()
    nodes.ask(1, GrantRights("worker", Verb.WORK, queue="q"))
    nodes.until(lambda: all([*each.grants.of("worker")] for each in nodes.nodes.values()))
    streams = WorkerStreams(nodes, 5)
    worker = Client(streams, streams.db)
    waits = worker.start(worker.db.queue("q").claim(1, wait=60))
    for id_ in IDS:
        other.enqueue(id_)
    worker.pass_time(1.0, waits)
    found = waits.result() + worker.run(worker.db.queue("q").claim(10))
    assert sorted(ids(found)) == sorted(IDS)
    worker.run(worker.db.queue("q").acknowledge(found[:5]))
    worker.run(worker.db.queue("q").acknowledge([found[5].id]))
    assert other.run(q.stats()).done == len(IDS)
    with pytest.raises(AccessDenied):
        worker.run(worker.db.queue("q").messages())
    nodes.close()


def test_a_split_ends_no_lease_of_an_embedded_store() -> None:
    with postroom.open(":memory:") as db:
        queue = db.create_queue("jobs", ack_wait=3600, max_attempts=1)
        for key in (b"a", b"n"):
            with db.begin() as tx:
                tx.enqueue("jobs", key, key=key)
        held = queue.claim(2)
        db.split(b"m")
        assert queue.acknowledge(held) == 2
        assert queue.stats().acknowledged == 2
