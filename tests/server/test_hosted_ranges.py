"""A node with several ranges: each has its requests, its services and its lead."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

from postroom import limits
from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.codec import resolve
from postroom.errors import CommitUnknown, DatabaseClosed, Unavailable
from postroom.kv.clock import SystemClock
from postroom.kv.engine import BlockDamaged
from postroom.kv.log_device import WriteFault
from postroom.kv.memory import MemoryEngine
from postroom.messaging.requests import (
    CancelScheduled,
    EnqueueMessage,
    ListScheduled,
    ReadCounters,
    ReapQueue,
)
from postroom.raft.interface import NoPeers
from postroom.ranges.admission import RefusedCalls
from postroom.ranges.bounds import WrongRange
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.protections import ReadPositions
from postroom.ranges.replica import Replica
from postroom.ranges.requests import (
    CommitTransaction,
    Get,
    GetMany,
    Lock,
    Now,
    Put,
    ReleaseLocks,
    Scan,
)
from postroom.server.assembly import NodeOptions
from postroom.server.asyncio_driver import AsyncioDriver
from postroom.server.membership import HAND_OVER_SECONDS
from postroom.server.node import Node
from postroom.server.services import Pending, all_of
from postroom.server.thread_driver import ThreadDriver
from tests.client.stores import Store
from tests.messaging.one_range import Asked
from tests.server.hosting import MEMBERS, ThreeNodes, bound, cut

KEYS = (b"a", b"m", b"z")
"""One key of each of three ranges."""


@pytest.fixture(params=[False, True], ids=["embedded", "remote"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return a store whose node has three ranges."""
    made = Store(remote=request.param)
    cut(made.node, b"m", b"z")
    made.driver.settle()
    yield made
    if made.node.failed is None:
        made.node.close()


def asked(store: Store, request: Any) -> Any:
    """Return the answer of the node, or raise its error."""
    call = Asked(request)
    store.node.replicas.submit(call)
    store.driver.settle()
    result, error = call.answers[0]
    if error is not None:
        raise error
    return result


def applied(store: Store) -> list[int]:
    """Return the applied index of each range."""
    ranges = store.node.replicas.hosted.values()
    return [hosted.replica.state.applied_index() for hosted in ranges]


def turning(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return the ids of the ranges that take part in turns from now on."""
    turned, begin = set[int](), Replica.begin

    def noted(replica: Replica, now: int) -> bool:
        turned.add(replica.range_id)
        return begin(replica, now)

    monkeypatch.setattr(Replica, "begin", noted)
    return turned


# --- the ranges of requests


def test_ranges_hear_of_a_refusal_only_when_it_changes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, refuse = list[int](), Replica.refuse

    def noted(replica: Replica, refusal: RefusedCalls | None) -> None:
        heard.append(replica.range_id)
        refuse(replica, refusal)

    monkeypatch.setattr(Replica, "refuse", noted)
    replicas, full = store.node.replicas, RefusedCalls(Unavailable("no room", retry_after=1.0))
    replicas.refuse(None)
    assert not heard
    for _ in range(2):
        replicas.refuse(full)
    assert heard == list(replicas.hosted)
    replicas.refuse(None)
    assert heard == list(replicas.hosted) * 2


def test_requests_go_to_the_range_of_their_keys(store: Store) -> None:
    for number, key in enumerate(KEYS):
        before = applied(store)
        store.db.put(key, b"value of " + key)
        after = applied(store)
        assert [later > earlier for earlier, later in zip(before, after, strict=True)] == [
            index == number for index in range(3)
        ]
    for key in KEYS:
        assert store.db.get(key) == b"value of " + key
        assert store.node.replicas.try_get(key) is None
        owner = store.node.replicas.by_key(key)
        assert store.node.replicas.by_span(key, key + b"\x00") == (owner,)
    found = store.node.replicas.by_span(b"", None)
    assert [replica.range_id for replica in found] == [1, 2, 3]


def test_messages_and_locks_are_those_of_their_range(store: Store) -> None:
    for key in KEYS:
        with store.db.begin() as tx:
            tx.get_for_update(key)
            tx.enqueue_message(key, b"hello")
        assert [each.value for each in store.db.begin().reap_queue(key)] == [b"hello"]


def test_a_request_for_keys_of_several_ranges_is_refused(store: Store) -> None:
    scans = Scan(b"a", b"n", 0, 10, 1000), Scan(b"", None, 0, 10, 1000)
    for request, ids in (
        (GetMany([b"z", b"a"]), {1, 3}),
        (scans[0], {1, 2}),
        (GetMany([b"z", b"n", b"a"]), {1, 2, 3}),
        (scans[1], {1, 3}),  # a client that scans asks range after range
    ):
        with pytest.raises(WrongRange) as raised:
            asked(store, request)
        assert {each.range_id for each in raised.value.descriptors} == ids
    assert asked(store, GetMany([b"m", b"n"])) is not None


def test_a_key_that_no_range_here_contains_is_refused(store: Store) -> None:
    bound(store.node, 3, b"zz", None)
    with pytest.raises(WrongRange):
        asked(store, Get(b"z"))
    assert store.node.replicas.try_get(b"z") is None


def test_the_whole_store_is_not_asked_at_once(store: Store) -> None:
    with pytest.raises(WrongRange) as raised:
        asked(store, ReadCounters())
    assert len(raised.value.descriptors) == 3


def test_requests_for_the_root_go_to_the_first_range(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted, submit = list[tuple[int, object]](), Replica.submit

    def noted(replica: Replica, call: Any) -> None:
        submitted.append((replica.range_id, type(call.request)))
        submit(replica, call)

    monkeypatch.setattr(Replica, "submit", noted)
    asked(store, ReadPositions())
    assert submitted == [(ROOT_ID, ReadPositions)]


def test_records_of_no_key_are_found_by_the_range_that_their_ids_name(store: Store) -> None:
    for key in KEYS:
        with store.db.begin() as tx:
            tx.enqueue_message(key, b"later", deliver_at=3600)
    hosted = store.node.replicas.hosted.values()
    ids = [listed_id(store, each.replica) for each in hosted]
    assert [int(id_[:16], 16) for id_ in ids] == [1, 2, 3]
    assert store.db.cancel(ids[1:]) == 2
    assert store.db.cancel([*ids, *ids]) == 1
    letters = [id_[:-18] for id_ in ids]  # the messages are no dead letters
    assert store.db.replay(letters) + store.db.discard(letters) == 0


def test_a_repeated_commit_of_a_range_without_keys_is_answered_as_the_first_time(
    store: Store,
) -> None:
    with store.db.begin() as tx:
        tx.enqueue_message(b"m", b"later", deliver_at=3600)
    id_ = bytes.fromhex(listed_id(store, store.node.replicas.by_id(2)))
    commit = CommitTransaction(
        bytes(16), store.node.clock.now(), 60.0, 0, b"", [], [], [CancelScheduled([id_])]
    )
    assert asked(store, commit).answers == [1]
    assert asked(store, commit).answers == [1]
    bound(store.node, 2, b"m", b"t")
    assert asked(store, commit).answers == [1]


def listed_id(store: Store, replica: Replica) -> str:
    """Return the id of the only entry of a range that waits for its time."""
    call = Asked(ListScheduled(b"", None, 10))
    replica.submit(call)
    store.driver.settle()
    (entry,) = call.answers[0][0].entries
    return str(entry.id.hex())


def test_locks_in_all_ranges_are_released(store: Store) -> None:
    transaction_id = bytes(16)
    for key in KEYS:
        asked(store, Lock([key], [], transaction_id, 60.0))
    assert store.node.replicas.sizes()["holders"] == 3
    assert store.node.replicas.holds_for(transaction_id[:8])
    asked(store, ReleaseLocks(transaction_id))
    assert store.node.replicas.sizes()["holders"] == 0


def test_locks_end_by_time_in_each_range(store: Store) -> None:
    """The next deadline of each range is known, though it takes no turn meanwhile."""
    for number, key in enumerate(KEYS):
        asked(store, Lock([key], [], bytes([number]) * 16, 2.0 + number))
    for number in range(3):
        assert store.node.replicas.sizes()["holders"] == 3 - number
        store.advance(1.0 if number else 2.0)
    assert store.node.replicas.sizes()["holders"] == 0


def test_a_gone_client_holds_nothing_in_any_range(store: Store) -> None:
    for key in KEYS:
        asked(store, Lock([key], [], b"client.." + bytes(8), 60.0))
    store.node.replicas.release_client(b"client..")
    assert not store.node.replicas.holds_for(b"client..")


def test_a_waiting_request_is_withdrawn_in_its_range(store: Store) -> None:
    calls = [Asked(ReapQueue(key, 1, 1000, bytes(16), 60.0, wait=True)) for key in KEYS]
    for call in calls:
        store.node.replicas.submit(call)
    assert store.node.replicas.sizes()["parked"] == 3
    assert all(store.node.replicas.cancel(call) for call in calls)
    assert store.node.replicas.sizes()["parked"] == 0


def test_a_request_is_withdrawn_where_it_waits_though_its_key_has_moved(store: Store) -> None:
    """It waits for its turn: those that stand in line are told when the bounds change."""
    replicas = store.node.replicas
    store.node.replicas.by_id(2).stop_serving()
    call = Asked(Get(b"n"))
    replicas.submit(call)
    assert len(replicas.by_id(2).reads.without_lease) == 1
    bound(store.node, 2, b"m", b"m\x00")
    bound(store.node, 3, b"m\x00", None)
    assert replicas.by_key(b"n") is replicas.by_id(3)
    assert replicas.cancel(call)
    assert not replicas.by_id(2).reads.without_lease
    assert not call.answers


def test_a_request_for_the_whole_store_is_withdrawn_in_the_range_that_was_named(
    store: Store,
) -> None:
    replicas, call = store.node.replicas, Asked(Now())
    replicas.by_id(2).stop_serving()
    replicas.submit_to(replicas.by_id(2), call)
    assert len(replicas.by_id(2).reads.without_lease) == 1
    assert replicas.cancel(call)
    assert not replicas.by_id(2).reads.without_lease
    assert not call.answers


def test_a_lease_of_any_range_changes_the_number_of_leases(store: Store) -> None:
    before = store.node.replicas.lease_sequence
    told = list[int]()
    store.node.replicas.on_lease(lambda: told.append(1))
    store.node.replicas.hosted[2].replica.stop_serving()
    store.db.put(b"n", b"")
    assert store.node.replicas.lease_sequence > before
    assert told


def test_a_commit_with_keys_of_two_ranges_writes_in_both(store: Store) -> None:
    asked(store, _commit(store.node, b"a", b"z"))
    assert store.db.get(b"a") == store.db.get(b"z") == b"value"


def test_two_ranges_never_contain_the_same_key(store: Store) -> None:
    bound(store.node, 2, b"n", b"z")
    bound(store.node, 1, b"", b"n")
    assert store.node.replicas.by_key(b"m") is store.node.root.replica
    with pytest.raises(ValueError, match="two ranges would own"):
        bound(store.node, 1, b"", None)
    bound(store.node, 3, b"", b"")
    assert store.node.replicas.by_key(b"z") is None


# --- one range, several, one


def test_the_only_range_is_asked_without_a_detour() -> None:
    store = Store()
    replicas, replica = store.node.replicas, store.node.root.replica
    wake = store.node.root.wake
    _, other = cut(store.node, b"m")
    assert replicas.submit != replica.submit
    assert store.node.root.wake != wake
    store.driver.settle()
    store.db.put(b"z", b"value")
    replicas.remove(other.range_id)
    bound(store.node, ROOT_ID, b"", None)
    assert replicas.submit == replica.submit
    assert replicas.evaluate == replica.turn
    assert store.node.root.wake == wake
    store.db.put(b"a", b"value")
    assert store.db.get(b"a") == b"value"
    store.node.close()


def test_a_removed_range_takes_no_turn_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    *_, last = cut(store.node, b"m", b"z")
    store.driver.settle()
    last.wake(urgent=True)
    store.node.replicas.remove(last.range_id)
    turned = turning(monkeypatch)
    store.db.put(b"n", b"")
    last.wake(urgent=True)
    store.advance(10.0)
    assert turned == {1, 2}
    store.node.close()


def test_each_turn_of_several_ranges_has_room_for_requests() -> None:
    store, told = Store(), list[str]()
    store.node.replicas.on_room(lambda: told.append("before"))
    cut(store.node, b"m")
    store.driver.settle()
    told.clear()
    store.node.turn()
    store.node.replicas.on_room(lambda: told.append("after"))
    store.node.turn()
    assert told == ["before", "after"]
    store.node.close()


def test_ranges_whose_turn_was_interrupted_take_part_in_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    cut(store.node, b"m", b"z")
    store.driver.settle()
    calls = [Asked(_commit(store.node, key)) for key in KEYS]
    for call in calls:
        store.node.replicas.submit(call)

    def interrupt(_: Replica) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.node.turn()
    store.driver.settle()
    assert [call.answers[0][1] for call in calls] == [None] * 3
    store.node.close()


def test_a_range_that_comes_later_hears_of_refusals_and_leases() -> None:
    store = Store()
    told = list[int]()
    store.node.replicas.on_lease(lambda: told.append(1))
    store.node._guard.change_reserve(1 << 60)
    store.advance(1.0)
    assert store.node.refused
    _, other = cut(store.node, b"m")
    store.driver.settle()
    assert other.replica.serves
    assert told
    with pytest.raises(Unavailable, match="kept in reserve"):
        store.db.put(b"z", b"value")
    store.node.close()


def test_only_ranges_with_something_to_do_take_part_in_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    cut(store.node, *(b"%04d" % number for number in range(40)))
    store.driver.settle()
    store.db.put(b"0020", b"")
    store.advance(1.0)
    turned = turning(monkeypatch)
    store.db.put(b"0020", b"")
    assert turned == {1, 22}
    store.node.close()


def test_requests_of_clients_wait_for_the_next_turn_when_a_range_has_read_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store(remote=True)
    cut(store.node, b"m", b"z")
    store.driver.settle()
    for key in KEYS:
        store.db.put(key, b"value")
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 5)
    seen = list[bool]()
    turn = store.node.turn

    def noted() -> None:
        seen.append(store.node.replicas.is_used_up)
        turn()

    monkeypatch.setattr(store.node, "turn", noted)
    calls = [store.start(store.core.get(key)) for key in KEYS[1:] * 15]
    assert [call.result() for call in calls] == [b"value"] * 30
    assert any(seen)
    store.node.close()


def test_a_node_that_opens_has_the_ranges_whose_records_it_finds() -> None:
    store = Store()
    cut(store.node, b"m", b"z")
    store.driver.settle()
    for key in KEYS:
        store.db.put(key, b"value of " + key)
    for end in (lambda: store.restart(after_seconds=60.0), store.kill):
        end()
        assert list(store.node.replicas.hosted) == [1, 2, 3]
        for key in KEYS:
            assert store.db.get(key) == b"value of " + key
    store.node.close()


def test_each_range_of_a_resting_store_rests_until_it_has_something_to_do() -> None:
    store = Store(rests_alone=True)
    cut(store.node, b"m", b"z")
    store.driver.settle()
    for key in KEYS:
        store.db.put(key, b"value of " + key)
    with store.db.begin() as tx:
        tx.enqueue_message(b"m", b"later", deliver_at=60.0)
    store.restart(after_seconds=1.0)
    ranges = [hosted.replica for hosted in store.node.replicas.hosted.values()]
    for key in KEYS:
        assert store.db.get(key) == b"value of " + key
    assert [replica.rests for replica in ranges] == [True, True, True]
    store.db.put(b"z", b"new")
    assert [replica.rests for replica in ranges] == [True, True, False]
    assert store.db.get(b"a") == b"value of a"
    store.advance(3.0)
    assert [replica.rests for replica in ranges] == [True, True, False]
    store.advance(67.0)
    assert [replica.rests for replica in ranges] == [False] * 3, "one works, so all collect garbage"
    assert len(store.db.peek(b"m")) == 1
    store.node.close()


# --- services


def test_each_range_delivers_its_scheduled_messages(store: Store) -> None:
    for key in KEYS:
        with store.db.begin() as tx:
            tx.enqueue_message(key, b"later", deliver_at=5.0)
    assert not any(store.db.peek(key) for key in KEYS)
    store.advance(6.0)
    for key in KEYS:
        assert [each.value for each in store.db.peek(key)] == [b"later"]


def test_one_range_loses_its_lead_and_the_services_of_the_others_go_on(store: Store) -> None:
    root, second, third = store.node.replicas.hosted.values()
    for key in KEYS:
        with store.db.begin() as tx:
            tx.enqueue_message(key, b"later", deliver_at=5.0)
    second.on_leadership(False, 1)
    assert [each.services.running for each in (root, second, third)] == [True, False, True]
    store.advance(6.0)
    assert [len(store.db.peek(key)) for key in (b"a", b"z")] == [1, 1]
    second.on_leadership(True, 1)
    store.driver.settle()
    assert second.services.running
    store.advance(6.0)
    assert len(store.db.peek(b"m")) == 1


def test_the_status_tells_how_many_ranges_there_are_and_are_led(store: Store) -> None:
    status = store.node.describe()
    assert (status.ranges, status.led_ranges) == (3, 3)
    assert [each.name for each in status.services] == [
        each.name for each in store.node.root.services.status()
    ]
    assert all(each.running for each in status.services)


# --- the end


def test_waiting_calls_of_all_ranges_are_answered_at_the_end() -> None:
    store = Store()
    cut(store.node, b"m", b"z")
    store.driver.settle()
    calls = [Asked(ReapQueue(key, 1, 1000, bytes(16), 60.0, wait=True)) for key in KEYS]
    for call in calls:
        store.node.replicas.submit(call)
    store.node.close(DatabaseClosed("closed"))
    assert [type(call.answers[0][1]) for call in calls] == [DatabaseClosed] * 3
    assert not any(each.services.running for each in store.node.replicas.hosted.values())


def test_a_turn_that_fails_fails_all_ranges() -> None:
    store = Store()
    cut(store.node, b"m", b"z")
    store.driver.settle()
    calls = [Asked(_commit(store.node, key)) for key in KEYS]
    for call in calls:
        store.node.replicas.submit(call)
    store.engine.fault = WriteFault.NOT_AT_ALL
    store.driver.settle()
    assert store.node.failed is not None
    assert [type(call.answers[0][1]) for call in calls] == [CommitUnknown] * 3
    assert not any(each.services.running for each in store.node.replicas.hosted.values())
    late = Asked(Get(b"z"))
    store.node.replicas.submit(late)
    assert late.answers[0][1] is store.node.failed
    store.node.close()


def _commit(node: Node, key: bytes, *others: bytes) -> CommitTransaction[Any]:
    writes = [*(Put(each, b"value") for each in (key, *others)), EnqueueMessage(key, b"hello")]
    began = node.clock.reading()
    return CommitTransaction(key * 16, began, 60.0, 0, key, [], [], writes)


def test_several_events_are_complete_when_each_of_them_is() -> None:
    told, one, other, done = list[str](), Pending(), Pending(), Pending()
    done.complete(None)
    one.callback = lambda: told.append("one")
    both = all_of([one, done, other])
    both.callback = lambda: told.append("all")
    other.complete(None)
    assert told == []
    one.complete(None)
    assert sorted(told) == ["all", "one"]
    assert all_of([done, done]).done
    assert all_of([one]) is one


# --- the drivers


def _node(*cuts: bytes) -> Node:
    node = Node(MemoryEngine(), SystemClock(), Random(1), NoPeers(), NodeOptions())
    if cuts:
        cut(node, *cuts)
    return node


def test_threads_write_into_two_ranges_at_once() -> None:
    driver = ThreadDriver(_node(b"m"), Random(2))
    driver.start()
    core = asynchronous.CoreDatabase(driver, resolve(None), Store._no_status, driver.close)
    with blocking.CoreDatabase(driver, core) as db, ThreadPoolExecutor(8) as threads:

        def work(number: int) -> None:
            for each in range(50):
                key = (b"a%d", b"z%d")[each % 2] % number
                db.put(key, b"%d" % each)
                assert db.get(key) == b"%d" % each

        list(threads.map(work, range(8)))


def test_threads_that_wait_in_two_ranges_are_answered_at_the_end() -> None:
    driver = ThreadDriver(_node(b"m"), Random(2))
    driver.start()
    core = asynchronous.CoreDatabase(driver, resolve(None), Store._no_status, driver.close)
    db = blocking.CoreDatabase(driver, core)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(db.begin().reap_queue, key, wait=60.0) for key in (b"a", b"z")]
        while driver.node.replicas.sizes()["parked"] < 2:
            db.put(b"a", b"")
        db.close()
        for each in waiting:
            assert isinstance(each.exception(), DatabaseClosed)


def test_tasks_write_into_two_ranges_at_once() -> None:
    async def run() -> None:
        driver = AsyncioDriver(_node(b"m"), Random(2))
        driver.start()
        db = asynchronous.CoreDatabase(driver, resolve(None), Store._no_status, driver.close)

        async def work(number: int) -> None:
            for each in range(20):
                key = (b"a%d", b"z%d")[each % 2] % number
                await db.put(key, b"%d" % each)
                assert await db.get(key) == b"%d" % each

        await asyncio.gather(*map(work, range(8)))
        reaps = [asyncio.ensure_future(_reap(db, key)) for key in (b"a", b"z")]
        while driver.node.replicas.sizes()["parked"] < 2:
            await db.put(b"a", b"")
        await db.close()
        ended = await asyncio.gather(*reaps, return_exceptions=True)
        assert [type(each) for each in ended] == [DatabaseClosed, DatabaseClosed]

    asyncio.run(run())


async def _reap(db: Any, key: bytes) -> None:
    tx = db.begin()
    await tx.reap_queue(key, wait=60.0)


# --- three nodes


@pytest.fixture
def three() -> Iterator[ThreeNodes]:
    made = ThreeNodes()
    yield made
    made.close()


def test_each_range_is_led_by_its_own_node(three: ThreeNodes) -> None:
    three.lead(1, 1)
    three.lead(2, 2)
    three.ask(1, _commit(three.nodes[1], b"a"))
    three.ask(2, _commit(three.nodes[2], b"z"))
    assert three.ask(1, Get(b"a")).value == b"value"
    assert three.ask(2, Get(b"z")).value == b"value"
    running = [
        [three.hosted(node, range_id).services.running for node in MEMBERS] for range_id in (1, 2)
    ]
    assert running == [[True, False, False], [False, True, False]]
    led = {node: three.nodes[node].describe().led_ranges for node in MEMBERS}
    assert led == {1: 1, 2: 1, 3: 0}


def test_a_node_that_stops_hands_over_all_ranges_that_it_leads(three: ThreeNodes) -> None:
    three.lead(1, 1)
    three.lead(2, 1)
    began, pending = three.clock.seconds, three.nodes[1].hand_over()
    three.until(lambda: pending.done)
    assert three.clock.seconds < began + HAND_OVER_SECONDS, "it has waited in vain"
    assert not any(three.hosted(1, range_id).group.is_leader for range_id in (1, 2))
    assert three.awaited_leader(1) != 1
    assert three.awaited_leader(2) != 1
    leader = three.awaited_leader(2)
    three.ask(leader, _commit(three.nodes[leader], b"z"))


def test_a_damaged_disk_leads_no_range_any_more(three: ThreeNodes) -> None:
    three.lead(1, 1)
    three.lead(2, 1)
    assert three.hosted(1, 2).on_damage(BlockDamaged("a block"))
    three.until(lambda: three.leader(1) not in (None, 1) and three.leader(2) not in (None, 1))
    for range_id in (1, 2):
        pending = three.hosted(three.awaited_leader(range_id), range_id).hand_over(1)
        three.until(lambda pending=pending: pending.done)  # type: ignore[misc]
        assert three.awaited_leader(range_id) != 1, "not even when it is asked to"
