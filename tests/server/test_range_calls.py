"""Calls from range to range: over nodes and within one, with frames that go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import msgspec
import pytest

from postroom import limits
from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.codec import resolve
from postroom.errors import OutboxFull, Unavailable
from postroom.kv.clock import SystemClock, from_seconds
from postroom.kv.memory import MemoryEngine
from postroom.messaging.handover.channels import Channel
from postroom.messaging.handover.requests import HandOver
from postroom.messaging.handover.sending import SendingService
from postroom.messaging.requests import Deliverable, ReadCounters
from postroom.raft.interface import NoPeers
from postroom.ranges.calls import NotLeaseholder
from postroom.ranges.carrier import Recipient
from postroom.ranges.requests import DeleteRange, Increment
from postroom.server import call_frames, range_calls
from postroom.server.assembly import NodeOptions
from postroom.server.call_frames import CALL_FRAME
from postroom.server.node import Node
from postroom.server.range_calls import ANSWER_SECONDS, RangeCalls
from postroom.server.thread_driver import ThreadDriver
from tests.client.stores import Store
from tests.messaging.one_range import Asked
from tests.server.hosting import cut
from tests.server.post import KEYS, Post

HERE, THERE = KEYS[0], KEYS[2]
"""A key of range 1, and one of range 2."""
RANGE_2 = Recipient(2, b"k", b"p/5")


@pytest.fixture
def post() -> Iterator[Post]:
    """Return three nodes with three ranges: node 1 leads the first one, node 2 the second one."""
    made = Post(1)
    made.three.lead(1, 1)
    made.three.lead(2, 2)
    yield made
    made.close()


def batch(*keys: bytes) -> HandOver:
    """Return a batch of range 7."""
    messages = tuple(
        (bytes(27) + bytes((number,)), Deliverable(key, b"m", None, bytes(16), b""))
        for number, key in enumerate(keys, 1)
    )
    return HandOver(Channel(7, False, 0), RANGE_2.start, RANGE_2.end, messages)


def counters(post: Post, range_id: int) -> Any:
    return next(each for found, each, _ in post.states() if found == range_id)


@pytest.mark.parametrize("seed", range(8))
def test_messages_and_updates_come_once_and_in_order_while_things_break(seed: int) -> None:
    post = Post(seed)
    post.play(60)
    post.close()


def test_a_batch_takes_one_log_entry_at_each_end(post: Post) -> None:
    def applied() -> list[int]:
        return [
            post.three.hosted(node_id, range_id).replica.state.applied_index()
            for node_id, range_id in ((1, 1), (2, 2))
        ]

    post.send(1, *([THERE] * limits.HANDED_OVER_MAX))
    before = applied()
    post.three.until(post.is_quiet)
    assert counters(post, 2).received == counters(post, 1).handed == limits.HANDED_OVER_MAX
    assert [after - was for after, was in zip(applied(), before, strict=True)] == [1, 1]
    post.arrive()


def test_a_range_that_cannot_be_reached_fills_the_outbox_and_is_sent_all_of_it_later(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = post.three.nodes[1]
    before = node.sizes()
    monkeypatch.setattr(limits, "OUTGOING_MAX", 50)
    with monkeypatch.context() as patch:
        patch.setattr(RangeCalls, "take", lambda *_: None)
        for _ in range(25):
            post.send(1, THERE, THERE, HERE)
        with pytest.raises(OutboxFull, match="nothing happened"):
            post.send(1, THERE)
        post.send(1, HERE)
        post.pass_time(6.0)
        assert counters(post, 1).outgoing_messages == 50
        assert len(node.calls) <= 1
    post.arrive()
    post.send(1, THERE)
    post.arrive()
    post.pass_time(8.0)
    assert len(node.calls) == 0
    before["timers"] += 2  # for the garbage
    assert {name: size for name, size in node.sizes().items() if size > before[name]} == {}


def test_a_deposed_leaseholder_only_repeats_what_is_irrevocable(post: Post) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RangeCalls, "take", lambda *_: None)
        post.send(1, THERE, THERE)
        post.pass_time(0.05)
    deposed = post.three.nodes[1].calls
    (sent,) = deposed._under_way.values()
    post.three.lead(1, 3)
    post.arrive()
    told: list[Any] = []
    request = HandOver(Channel(1, False, 0), RANGE_2.start, RANGE_2.end)
    deposed.carry(RANGE_2, request, told.append)
    post.three.until(lambda: told)
    ((start, end, mark),) = told[0]
    assert (start, end) == RANGE_2[1:]
    assert mark > b""
    sent.answered(told[0])  # the first answer comes now
    post.arrive()


def test_a_call_goes_to_the_leaseholder_wherever_it_is(post: Post) -> None:
    for node_id, node in post.three.nodes.items():
        told: list[Any] = []
        node.calls.carry(RANGE_2, batch(THERE), told.append)
        post.three.until(lambda told=told: told)  # type: ignore[misc]
        assert [piece.mark for piece in told[0]] == [batch(THERE).messages[-1][0]], node_id
    assert counters(post, 2).received == 1


def test_a_call_to_a_range_that_no_node_leads_or_has_fails_at_once(post: Post) -> None:
    told: list[Any] = []
    node = post.three.nodes[1]
    node.calls.carry(Recipient(9, b"", None), batch(), told.append)
    post.three.crash(2)
    post.three.until(lambda: post.three.hosted(1, 2).group.leader is None)
    post.three.crash(3)
    node.calls.carry(RANGE_2, batch(), told.append)
    assert [type(each) for each in told] == [NotLeaseholder, NotLeaseholder]


def test_a_call_to_a_node_that_is_away_fails_as_soon_as_another_one_says_so(post: Post) -> None:
    told: list[Any] = []
    post.three.crash(2)
    post.three.nodes[1].calls.carry(RANGE_2, batch(), told.append)
    post.three.until(lambda: told, 0.1)
    assert isinstance(told[0], Unavailable)
    assert len(post.three.nodes[1].calls) == 0


def test_a_call_is_passed_on_where_a_link_is_cut(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(post.three.network, "_same_side", lambda *ends: set(ends) != {1, 2})
    post.three.nodes[1].calls.carry(RANGE_2, batch(THERE), told.append)
    post.three.until(lambda: told, 0.1)
    assert [piece.mark for piece in told[0]] == [batch(THERE).messages[-1][0]]
    assert len(post.three.nodes[1].calls) == len(post.three.nodes[3].calls) == 0


def test_a_call_without_an_answer_fails_after_a_time(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RangeCalls, "take", lambda *_: None)
    told: list[Any] = []
    calls = post.three.nodes[1].calls
    began = post.three.clock.seconds
    calls.carry(RANGE_2, batch(), told.append)
    assert len(calls) == 1
    post.three.until(lambda: told)
    assert post.three.clock.seconds - began == pytest.approx(ANSWER_SECONDS, abs=0.01)
    assert isinstance(told[0], Unavailable)
    assert len(calls) == 0


def test_calls_under_way_are_limited_by_their_sender_and_by_their_receiver(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    calls = post.three.nodes[1].calls
    monkeypatch.setattr(range_calls, "CALLS_UNDER_WAY_BYTES_MAX", 100)
    calls.carry(RANGE_2, batch(THERE), told.append)
    calls.carry(RANGE_2, batch(THERE), told.append)
    assert len(told) == 1
    assert "too much is under way" in str(told[0])
    monkeypatch.undo()
    monkeypatch.setattr(range_calls, "CALLS_SERVED_BYTES_MAX", 100)
    calls.carry(RANGE_2, batch(THERE), told.append)
    post.three.until(lambda: len(told) == 3)
    assert "too many calls" in str(told[1])
    assert not isinstance(told[2], Exception)
    post.pass_time(0.1)
    assert post.three.nodes[2].calls._bytes_served == 0
    assert calls._bytes_to[2] == 0


def test_a_turn_takes_in_a_share_of_the_calls_that_have_come(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_frames, "CALLS_READ_BYTES_A_TURN", 100)
    monkeypatch.setattr(call_frames, "CALLS_TOGETHER_BYTES_MAX", 100)
    taken: list[int] = []
    take = RangeCalls.take

    def noted(self: RangeCalls, sender: Any, frame: bytes) -> None:
        taken.append(round(post.three.clock.seconds * 1000))
        take(self, sender, frame)

    monkeypatch.setattr(RangeCalls, "take", noted)
    told: list[Any] = []
    for _ in range(6):
        post.three.nodes[1].calls.carry(RANGE_2, batch(THERE), told.append)
    post.three.until(lambda: len(told) == 6)
    assert len(set(taken)) >= 3, "one turn has taken in all of them"


def test_an_answer_from_another_node_or_to_an_earlier_call_is_no_answer(post: Post) -> None:
    told: list[Any] = []
    node = post.three.nodes[1]
    node.calls.carry(RANGE_2, batch(), told.append)
    (number,) = node.calls._under_way
    lie = encoded([2, number, [[b"k", None, b"\xff" * 28]], None, 0])
    old = encoded([2, number - 1, [], None, 0])
    node.calls.take(3, lie)
    node.calls.take(2, old)
    assert told == []
    post.three.until(lambda: told)
    assert told == [[]]


def test_numbers_of_calls_do_not_repeat_after_a_crash(post: Post) -> None:
    numbers: list[int] = []
    for _ in range(3):
        calls = post.three.nodes[1].calls
        for _ in range(100):
            calls.carry(RANGE_2, batch(), lambda _: None)
        numbers += calls._under_way
        post.three.crash(1)
        post.three.open(1)
        post.three.until(lambda: post.three.hosted(1, 2).group.leader == 2)
    assert len(numbers) == 300
    assert all(before < after for before, after in pairwise(numbers))


def encoded(message: Any) -> bytes:
    return CALL_FRAME + msgspec.msgpack.encode([message])


@pytest.mark.parametrize(
    "frame",
    [
        CALL_FRAME,
        CALL_FRAME + b"\xc1",
        CALL_FRAME + b"\x90",
        encoded([1]),
        encoded([9, 1, 1, None]),
        encoded([1, 1, 2, ["delete_range", b"", None, None]]),
        encoded([1, -1, 2, ["hand_over", [7, False, 0], b"", None, [], []]]),
        encoded([1, 1, 2, ["hand_over", [7, False, 8], b"", None, [], []]]),
        encoded([1, 1, 2, ["hand_over", [7, False, 0], b"", None, [[b"short", None]], []]]),
        encoded([1, (1 << 63) - 1, 2, ["hand_over", [7, False, 0], b"", None, [], []]]),
        encoded([2, 1, None, None]),
        encoded(
            [
                1,
                1,
                2,
                [
                    "hand_over",
                    [7, False, 0],
                    b"k",
                    b"p",
                    [
                        [bytes(28), [b"k", bytes(limits.CALL_BYTES_MAX), None, b"", b""]],
                    ],
                    [],
                ],
            ]
        ),
    ],
)
def test_a_malformed_frame_is_dropped_and_its_sender_is_reported(post: Post, frame: bytes) -> None:
    reported: list[Any] = []
    node = post.three.nodes[2]
    node.on_malformed = reported.append
    last = node.clock.last()
    post.three.network.carry(1, 2, frame)
    post.three.until(lambda: reported)
    assert reported == [1]
    assert node.clock.last() < last + from_seconds(10.0)
    post.send(1, THERE)
    post.arrive()


def test_a_malformed_answer_is_dropped_and_its_call_fails_by_time(post: Post) -> None:
    reported: list[Any] = []
    told: list[Any] = []
    node = post.three.nodes[1]
    node.on_malformed = reported.append
    node.calls.carry(RANGE_2, batch(), told.append)
    (number,) = node.calls._under_way
    node.calls.take(2, encoded([2, number, 17, None, 0]))
    assert (reported, told) == ([2], [])


def test_a_message_of_a_node_whose_clock_is_ahead_arrives_at_once(post: Post) -> None:
    for ahead, behind, (sender, key) in ((1, 2, (1, THERE)), (2, 1, (2, HERE))):
        clock = post.three.nodes[ahead].clock
        clock.pass_over(clock.reading() + from_seconds(3600.0))
        post.send(sender, key)
        post.three.until(post.is_quiet, 1.0)
        assert post.three.nodes[behind].clock.last() > clock.last() - from_seconds(10.0)
    post.arrive()


def test_new_bounds_make_the_service_look_again(post: Post) -> None:
    for node in post.three.nodes.values():
        before = node.calls.version
        node.replicas.follow(2)
        assert node.calls.version > before
        assert node.calls.recipient_of(THERE) == RANGE_2


def test_a_node_without_a_range_passes_over_its_keys_in_one_step(post: Post) -> None:
    node = post.three.nodes[1]
    node.replicas.remove(1)
    assert node.calls.recipient_of(HERE) == Recipient(0, b"", RANGE_2.start)
    assert node.calls.recipient_of(b"") == Recipient(0, b"", RANGE_2.start)


# --- one node


@pytest.fixture(params=[False, True], ids=["embedded", "remote"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return a store whose node has three ranges."""
    made = Store(remote=request.param)
    cut(made.node, b"m", b"z")
    made.driver.settle()
    yield made
    made.node.close()


def test_a_transaction_sends_to_ranges_of_its_node(store: Store) -> None:
    with store.db.begin() as tx:
        tx.put(b"a", b"1")
        for key in (b"b", b"n", b"z"):
            tx.enqueue_message(key, b"for " + key)
            tx.enqueue_update(Increment(key + b"/sum"))
    store.driver.settle()
    for key in (b"b", b"n", b"z"):
        with store.db.begin() as tx:
            assert [each.value for each in tx.reap_queue(key)] == [b"for " + key]
        assert store.db.get(key + b"/sum") == (1).to_bytes(8, "big")


@contextmanager
def remote_store() -> Iterator[Any]:
    made = Store(remote=True)
    cut(made.node, b"m", b"z")
    made.driver.settle()
    yield made.db
    made.node.close()


@contextmanager
def embedded_store() -> Iterator[Any]:
    node = Node(MemoryEngine(), SystemClock(), Random(1), NoPeers(), NodeOptions())
    cut(node, b"m", b"z")
    driver = ThreadDriver(node, Random(2))
    driver.start()
    core = asynchronous.CoreDatabase(driver, resolve(None), Store._no_status, driver.close)
    with blocking.CoreDatabase(driver, core) as db:
        yield db


@pytest.fixture(params=[remote_store, embedded_store], ids=["remote", "embedded"])
def db(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return a database whose node has three ranges."""
    with request.param() as made:
        yield made


def test_a_store_of_several_ranges_tells_what_all_of_them_have(db: Any) -> None:
    db.put(b"n/text", b"text")
    with db.begin() as tx:
        tx.put(b"a", b"1")
        for key in (b"b", b"n", b"z"):
            tx.enqueue_message(key, b"now")
            tx.enqueue_message(key, b"later", deliver_at=100.0)
        tx.enqueue_update(Increment(b"n/text"))
    with db.begin() as tx:
        tx.put(b"z", b"1")
        tx.enqueue_message(b"b", b"from z", deliver_at=50.0)
        tx.enqueue_update(Increment(b"z/sum"))
    db.drain()
    assert [each.key for each in db.scheduled()] == [b"b", b"b", b"n", b"z"]
    assert [each.key for each in db.scheduled(limit=2)] == [b"b", b"b"]
    (letter,) = db.dead_letters()
    db.delete(b"n/text")
    assert db.replay([letter.id]) == 1
    assert db.cancel([each.id for each in db.scheduled()]) == 4
    db.drain()
    assert db.scheduled() == db.dead_letters() == []
    assert [len(db.begin().reap_queue(key)) for key in (b"b", b"n", b"z")] == [1, 1, 1]
    assert db.get(b"n/text") == db.get(b"z/sum") == (1).to_bytes(8, "big")


def test_a_drain_waits_for_what_other_ranges_have_taken(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DELETED_AT_ONCE_MAX", 2)
    with db.begin() as tx:
        for number in range(200):
            tx.put(b"a%d" % number, b"1")
    with db.begin() as tx:
        tx.put(b"z", b"1")
        tx.enqueue_update(DeleteRange(b"a", b"b"))
    db.drain()
    assert list(db.scan(b"a", b"b")) == []


def test_the_counters_of_all_ranges_are_added_up() -> None:
    store = Store(remote=True)
    cut(store.node, b"m")
    store.driver.settle()
    with store.db.begin() as tx:
        tx.put(b"a", b"1")
        tx.enqueue_message(b"z", b"hello")
    store.db.drain()
    counters = store.driver.run(_answer(store, ReadCounters()))
    assert (counters.enqueued, counters.delivered, counters.outgoing) == (1, 1, 0)
    assert (counters.received, counters.handed) == (1, 1)
    store.node.close()


async def _answer(store: Store, request: Any) -> Any:
    return await store.driver.send(request)


def test_a_store_of_one_range_reads_no_outgoing_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SendingService, "_entries", None)
    store = Store(remote=False)
    with store.db.begin() as tx:
        tx.enqueue_message(b"z", b"hello")
    store.driver.settle()
    assert _told(store.node, ReadCounters()).delivered == 1
    assert not any(each.failures for each in store.node.root.services.status())
    store.db.close()


def _told(node: Node, request: Any) -> Any:
    asked = Asked(request)
    node.replicas.submit(asked)
    return asked.answers[0][0]


def test_a_node_that_lags_applies_two_splits_of_a_range_in_one_turn(post: Post) -> None:
    three = post.three
    three.lead(1, 2)
    three.lead(3, 2)
    lagging = three.nodes.pop(1)
    for key in (b"t", b"pd"):
        post.split(key)
        three.until(lambda key=key: post.start_of(post.range_of(key)) == key)  # type: ignore[misc]
    post.pass_time(0.2)
    three.nodes[1] = lagging
    three.until(lambda: len(lagging.replicas.hosted) == 5)
    post.send(1, b"pd", b"tb")
    post.arrive()


def test_entries_that_are_on_their_way_leave_after_a_restart(post: Post) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RangeCalls, "take", lambda *_: None)
        post.send(1, THERE)
        post.pass_time(0.2)
    for node_id in (1, 2, 3):
        post.three.crash(node_id)
    for node_id in (1, 2, 3):
        post.three.open(node_id)
    post.arrive()
