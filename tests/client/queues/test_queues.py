"""Queues as applications see them, in a store whose time the test moves: here, and over a wire."""

from __future__ import annotations

import datetime
import itertools
from typing import Any

import pytest

import postroom
from tests.client.queues.enqueueing import enqueue
from tests.client.stores import Store


def ids(messages: Any) -> list[Any]:
    return [each.id for each in messages]


# --- enqueueing


def test_state_inboxes_and_queues_change_together(store: Store) -> None:
    db, q, other = store.db, store.db.create_queue("q"), store.db.create_queue("other")
    tx = db.begin()
    tx.put(b"k", b"v")
    tx.enqueue("q", b"1")
    tx.rollback()
    assert q.claim(1) == []
    with db.begin() as tx:
        tx.put(b"k", b"v")
        tx.enqueue_message(b"inbox", b"m")
        one, two = tx.enqueue("q", b"1"), tx.enqueue("other", b"2")
    assert db.get(b"k") == b"v"
    assert [each.value for each in db.peek(b"inbox")] == [b"m"]
    assert ids(q.claim(5)) == [one.id]
    assert ids(other.claim(5)) == [two.id]


def test_a_queue_that_is_not_there_is_named(store: Store) -> None:
    with pytest.raises(postroom.Invalid, match="'q'"):
        enqueue(store)
    for call in (store.db.queue("q").claim, store.db.queue("q").info, store.db.queue("q").stats):
        with pytest.raises(postroom.Invalid, match="'q'"):
            call()
    with pytest.raises(postroom.Invalid, match="'q'"):
        next(iter(store.db.queue("q").receive()))


def test_all_of_a_message_comes_back(store: Store) -> None:
    q = store.db.create_queue("q")
    before = store.db.now()
    enqueue(
        store, b"hello", id="i", kind="mail", key=b"user/1", priority=-3, group="g",
        headers={"h": 1, "b": b"\xff"},
    )  # fmt: skip
    (message,) = q.claim(1)
    assert (message.queue, message.id, message.kind) == ("q", "i", "mail")
    assert (message.key, message.payload) == (b"user/1", b"hello")
    assert message.headers == {"h": 1, "b": b"\xff"}
    assert (message.priority, message.group, message.epoch) == (-3, "g", 0)
    assert before < message.created_at < store.db.now()
    assert message.leased_until is not None
    assert 29 < (message.leased_until.datetime - message.created_at.datetime).seconds <= 30
    assert message.last_error == ""
    assert message.state == "leased"
    assert "hello" in repr(message)


def test_an_id_is_unique_within_its_kind(store: Store) -> None:
    store.db.create_queue("q")
    assert enqueue(store, b"1", id="i", kind="a").inserted is True
    assert enqueue(store, b"2", id="i", kind="a").inserted is False
    assert enqueue(store, b"3", id="i", kind="b").inserted is True
    payloads = sorted(each.payload for each in store.db.queue("q").claim(5))
    assert payloads == [b"1", b"3"]


def test_a_duplicate_may_be_an_error_or_replace(store: Store) -> None:
    q = store.db.create_queue("q", on_duplicate="error")
    enqueue(store, b"1", id="i")
    with pytest.raises(postroom.Error, match="'i'"):
        enqueue(store, b"2", id="i")
    q.update(on_duplicate="replace")
    handle = enqueue(store, b"3", id="i", deliver_at=60)
    assert (handle.inserted, handle.replaced) == (False, True)
    assert q.claim(1) == []
    store.advance(60)
    (message,) = q.claim(1)
    assert message.payload == b"3"


# --- when


def test_a_message_is_fired_when_it_is_due(store: Store) -> None:
    q = store.db.create_queue("q")
    enqueue(store, b"later", deliver_at=datetime.timedelta(hours=1))
    assert q.claim(1) == []
    assert [each.state for each in q.messages()] == ["scheduled"]
    before = store.driver.monotonic()
    (message,) = q.claim(1, wait=7200)
    assert 3600 <= store.driver.monotonic() - before < 3600.01
    assert message.scheduled == message.first_scheduled


def test_reschedule_brings_failures_forward(store: Store) -> None:
    q = store.db.create_queue("q")
    for each in "abc":
        enqueue(store, id=each, kind="k")
    q.reject(q.claim(3), 3600, reason="down")
    assert q.claim(3) == []
    with store.db.begin() as tx:
        tx.reschedule("q", ["a", "b"], epoch=7)
    found = q.claim(3)
    assert sorted(ids(found)) == ["a", "b"]
    assert {each.epoch for each in found} == {7}
    assert {each.last_error for each in found} == {"down"}
    assert q.reschedule("c", deliver_at=10) == 1
    assert q.claim(1) == []
    store.advance(10)
    (c,) = q.claim(1)
    assert c.first_scheduled < c.scheduled


def test_lower_priorities_go_first(store: Store) -> None:
    q = store.db.create_queue("q")
    for priority in (5, -5, 0):
        enqueue(store, id=str(priority), priority=priority)
    assert ids(q.claim(3)) == ["-5", "0", "5"]


# --- consumers and what they get


def test_claims_are_distinct_and_as_many_as_asked(store: Store) -> None:
    q = store.db.create_queue("q", batch_size=10)
    with store.db.begin() as tx:
        for number in range(35):
            tx.enqueue("q", b"x", id=str(number))
    first, second, third = q.claim(25), q.claim(25), q.claim(25)
    assert (len(first), len(second), third) == (25, 10, [])
    assert len({*ids(first), *ids(second)}) == 35


def test_a_consumer_never_sees_what_it_did_not_ask_for(store: Store) -> None:
    q = store.db.create_queue("q")
    enqueue(store, id="a", kind="mail", key=b"user/1", headers={"to": "x"})
    enqueue(store, id="b", kind="call", key=b"user/2", headers={"to": "y"})
    enqueue(store, id="c", kind="call", key=b"user/3")
    assert q.claim(5, kinds="fax") == []
    assert q.claim(5, where={"to": "z"}) == []
    assert q.claim(5, start=b"user/4") == []
    assert ids(q.claim(5, where={"to": "y"})) == ["b"]
    assert ids(q.claim(5, start=b"user/3", end=b"user/4")) == ["c"]
    assert ids(q.claim(5, kinds=["mail", "call"])) == ["a"]


def test_waiting_for_a_message(store: Store) -> None:
    q = store.db.create_queue("q")
    before = store.driver.monotonic()
    assert q.claim(1, wait=5) == []
    assert store.driver.monotonic() - before == pytest.approx(5, abs=0.1)
    waiting = store.start(store.core.queue("q").claim(1, wait=60))
    enqueue(store, id="i")
    store.driver.settle()
    assert ids(waiting.result()) == ["i"]


def test_receiving_hands_out_one_by_one_and_gives_back_the_rest(store: Store) -> None:
    q = store.db.create_queue("q")
    with store.db.begin() as tx:
        for number in range(20):
            tx.enqueue("q", b"x", id=f"{number:02}")
    seen = []
    for message in q.receive():
        message.acknowledge()
        seen.append(message.id)
        if len(seen) == 9:  # claimed: 1, 2, 4, 8
            break
    assert seen == [f"{number:02}" for number in range(9)]
    left = q.claim(20)
    assert len(left) == 11
    assert {each.epoch for each in left} == {0}
    assert q.stats().expired == 0


def test_consumers_share(store: Store) -> None:
    q = store.db.create_queue("q")
    both = [iter(q.receive(credit=1)) for _ in range(2)]
    with store.db.begin() as tx:
        for number in range(10):
            tx.enqueue("q", b"x", id=str(number))
    seen: list[Any] = []
    for consumer in itertools.islice(itertools.cycle(both), 10):
        message = next(consumer)
        seen.append(message.id)
        message.acknowledge()
    assert sorted(seen) == sorted(map(str, range(10)))
    for consumer in both:
        consumer.close()  # type: ignore[attr-defined]


# --- leases


def test_a_lease_that_passes_fires_the_message_again(store: Store) -> None:
    q = store.db.create_queue("q", ack_wait=30)
    enqueue(store, id="i")
    (first,) = q.claim(1)
    assert q.claim(1, wait=29) == []
    (second,) = q.claim(1, wait=60)
    assert (second.id, second.epoch) == ("i", 1)
    assert second.last_error != ""
    with pytest.raises(postroom.LeaseLost):
        first.acknowledge()
    tx = store.db.begin()
    tx.put(b"k", b"v")
    tx.acknowledge("q", first)
    with pytest.raises(postroom.LeaseLost):
        tx.commit()
    assert store.db.get(b"k") is None
    second.acknowledge()
    with pytest.raises(postroom.LeaseLost):
        second.acknowledge()
    assert q.claim(1, wait=1000) == []


def test_extending_a_lease(store: Store) -> None:
    q = store.db.create_queue("q", ack_wait=30)
    enqueue(store)
    (message,) = q.claim(1)
    store.advance(20)
    until = message.extend(60)
    assert message.leased_until == until
    store.advance(50)
    assert q.claim(1) == []
    message.acknowledge()
    with pytest.raises(postroom.LeaseLost):
        message.extend(60)


def test_an_id_ends_a_message_whoever_holds_it(store: Store) -> None:
    q = store.db.create_queue("q")
    enqueue(store, id="i", kind="k", key=b"elsewhere")
    (message,) = q.claim(1)
    assert q.acknowledge("i") == 1
    with pytest.raises(postroom.LeaseLost):
        message.acknowledge()
    assert q.acknowledge("i") == 0


def test_rejecting(store: Store) -> None:
    q = store.db.create_queue("q")
    enqueue(store, id="i")
    (message,) = q.claim(1)
    message.reject(0, reason="again")
    (message,) = q.claim(1)
    assert (message.epoch, message.last_error) == (1, "again")
    message.reject(100)
    store.advance(99)
    assert q.claim(1) == []
    store.advance(1.1)
    (message,) = q.claim(1)
    message.reject(dead=True, reason="no use")
    assert q.claim(1, wait=10_000) == []
    (dead,) = q.dead_letters()
    assert (dead.id, dead.state, dead.last_error) == ("i", "dead", "no use")
    assert q.replay(["i"]) == 1
    (message,) = q.claim(1)
    assert message.epoch == 0


def test_rejections_back_off_and_end(store: Store) -> None:
    q = store.db.create_queue("q", max_attempts=4)
    enqueue(store, id="i")
    times = []
    for _ in range(4):
        (message,) = q.claim(1, wait=100)
        times.append(store.driver.monotonic())
        message.reject(reason="bad")
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(0.9 * 2**n <= pause <= 1.11 * 2**n for n, pause in enumerate(pauses))
    assert q.claim(1, wait=1000) == []
    assert ids(q.dead_letters()) == ["i"]


def test_the_dead_may_go_to_a_queue_of_their_own(store: Store) -> None:
    grave = store.db.create_queue("grave")
    q = store.db.create_queue("q", dead_letter_queue="grave")
    enqueue(store, b"body", id="i", kind="k")
    q.claim(1)[0].reject(dead=True, reason="no use")
    (message,) = grave.claim(1, wait=1)
    assert message.payload == b"body"
    assert "no use" in str(message.headers)
    assert q.dead_letters() == []


def test_a_transaction_settles_or_gives_back_its_claims(store: Store) -> None:
    q = store.db.create_queue("q")
    for each in "abc":
        enqueue(store, id=each)
    with store.db.begin() as tx:
        a, b, _ = tx.claim("q", 3)
        tx.reject("q", b, 0)
        tx.put(b"k", b"v")
    assert store.db.get(b"k") == b"v"
    assert a.id == "a"
    assert ids(q.claim(3)) == ["b"]
    enqueue(store, id="d")
    tx = store.db.begin()
    assert ids(tx.claim("q", 1, wait=100)) == ["d"]
    tx.rollback()
    (again,) = q.claim(1, wait=100)
    assert (again.id, again.epoch) == ("d", 0)


# --- looking


def test_looking_at_messages(store: Store) -> None:
    q = store.db.create_queue("q", archive=True)
    for each in ("a", "b", "c"):
        enqueue(store, id=each)
    enqueue(store, id="d", deliver_at=1000)
    before = store.db.now()
    a, b = q.claim(2)
    a.acknowledge()
    b.reject(dead=True)
    states = {name: ids(q.messages(name)) for name in ("scheduled", "ready", "leased", "dead")}  # type: ignore[arg-type]
    assert states == {"scheduled": ["d"], "ready": ["c"], "leased": [], "dead": ["b"]}
    assert ids(q.archive()) == ["a"]
    assert ids(q.archive(end=before)) == []
    assert sorted(ids(q.messages())) == ["c", "d"]
    found = q.get("a")
    assert found is not None
    assert (found.state, found.done_at is not None) == ("archived", True)
    assert q.get("z") is None
    assert len(q.messages(limit=1)) == 1
    with pytest.raises(ValueError, match="state"):
        q.messages("fired")  # type: ignore[arg-type]
    stats = q.stats()
    assert (stats.ready, stats.scheduled, stats.dead, stats.archived) == (1, 1, 1, 1)


def test_cancelling(store: Store) -> None:
    q = store.db.create_queue("q")
    enqueue(store, id="i")
    enqueue(store, id="j", deliver_at=60)
    (message,) = q.claim(1)
    assert q.cancel(["i", "j", "k"]) == 2
    with pytest.raises(postroom.LeaseLost):
        message.acknowledge()
    assert q.messages() == []


# --- queues


def test_settings(store: Store) -> None:
    db = store.db
    q = db.create_queue("q", ack_wait=5, max_rate=100)
    db.create_queue("q", ack_wait=5, max_rate=100)
    with pytest.raises(postroom.Invalid, match="ack_wait"):
        db.create_queue("q", ack_wait=6, max_rate=100)
    with pytest.raises(postroom.Invalid, match="batch_size"):
        db.create_queue("p", batch_size=0)
    with pytest.raises(postroom.Invalid, match="max_backoff"):
        q.update(min_backoff=10, max_backoff=1)
    q.update(max_rate=None, ack_wait=7)
    (info,) = db.queues()
    assert (info.name, info.settings.ack_wait, info.settings.max_rate) == ("q", 7, None)
    assert q.info() == info


def test_queues_are_listed_page_by_page_in_the_order_of_their_names(store: Store) -> None:
    db = store.db
    for name in ("c", "a", "ä", "b"):
        db.create_queue(name)
    assert [each.name for each in db.queues()] == ["a", "b", "c", "ä"]
    assert [each.name for each in db.queues(limit=2)] == ["a", "b"]
    assert [each.name for each in db.queues(after="b", limit=2)] == ["c", "ä"]
    assert [each.name for each in db.queues(after="aa")] == ["b", "c", "ä"]
    assert db.queues(after="ä", limit=2) == []
    for wrong in ({"limit": 0}, {"after": 1}, {"after": "x" * 300}):
        with pytest.raises((ValueError, TypeError, postroom.Invalid)):
            db.queues(**wrong)


def test_pausing(store: Store) -> None:
    q = store.db.create_queue("q")
    enqueue(store, id="a")
    (held,) = q.claim(1)
    q.pause()
    assert q.info().paused
    enqueue(store, id="b")
    held.acknowledge()
    assert q.claim(1, wait=10) == []
    q.resume()
    assert ids(q.claim(1)) == ["b"]


def test_dropping_ends_who_waits(store: Store) -> None:
    q = store.db.create_queue("q")
    waiting = store.start(store.core.queue("q").claim(1, wait=1000))
    streaming = store.start(anext(aiter(store.core.queue("q").receive())))
    q.drop()
    store.driver.settle()
    for each in (waiting, streaming):
        with pytest.raises(postroom.Invalid, match="dropped"):
            each.result()
    assert store.db.queues() == []
    with pytest.raises(postroom.Invalid, match="'q'"):
        enqueue(store)


def test_limits_change_while_it_runs(store: Store) -> None:
    q = store.db.create_queue("q", max_concurrency=2)
    with store.db.begin() as tx:
        for _ in range(10):
            tx.enqueue("q", b"x")
    held = q.claim(10)
    assert len(held) == 2
    assert q.claim(10) == []
    q.update(max_concurrency=3)
    assert len(q.claim(10)) == 1
    q.acknowledge(held)
    assert len(q.claim(10)) == 2


def test_order_within_a_group(store: Store) -> None:
    q = store.db.create_queue("q", order="group")
    for name in ("a1", "a2", "b1"):
        enqueue(store, id=name, group=name[0])
    first = {each.id: each for each in q.claim(10)}
    assert set(first) == {"a1", "b1"}
    first["a1"].reject(60)
    first["b1"].acknowledge()
    assert q.claim(10) == []
    (again,) = q.claim(10, wait=100)
    assert again.id == "a1"
    again.acknowledge()
    assert ids(q.claim(10)) == ["a2"]


def test_the_follower_of_a_group_comes_when_the_group_is_done(store: Store) -> None:
    q = store.db.create_queue("q")
    with store.db.begin() as tx:
        for each in "ab":
            tx.enqueue("q", b"part", id=each, group="g")
        tx.when_done("q", "g", postroom.Enqueue("q", b"sum", id="sum"))
    a, b = q.claim(5)
    a.acknowledge()
    assert q.claim(5) == []
    b.acknowledge()
    assert ids(q.claim(5)) == ["sum"]
    with pytest.raises(TypeError, match="Enqueue"), store.db.begin() as tx:
        tx.when_done("q", "g", ("q", b"sum"))  # type: ignore[arg-type]


def test_periodic(store: Store) -> None:
    q = store.db.create_queue("q")
    pytest.importorskip("cronsim")
    q.schedule("hourly", cron="0 * * * *", payload=b"tick", kind="clock")
    (schedule,) = q.schedules()
    assert (schedule.name, schedule.cron, schedule.payload) == ("hourly", "0 * * * *", b"tick")
    seen = []
    for _ in range(3):
        seen += q.claim(1, wait=3601)
        q.acknowledge(seen[-1])
    moments = [each.scheduled.datetime for each in seen]
    assert {moment.minute for moment in moments} == {0}
    assert moments[1] - moments[0] == datetime.timedelta(hours=1)
    assert all(str(each.id).startswith("hourly@") for each in seen)
    assert len(set(ids(seen))) == 3
    q.unschedule("hourly")
    assert q.schedules() == []
    assert q.claim(1, wait=8000) == []
    with pytest.raises(postroom.Invalid, match="cron"):
        q.schedule("bad", cron="every day", payload=b"")
    with pytest.raises(postroom.Invalid, match="Mars"):
        q.schedule("bad", cron="0 3 * * *", payload=b"", timezone="Mars/Olympus")


def test_a_payload_that_cannot_be_unpacked_is_the_trouble_of_its_handler_alone(
    store: Store,
) -> None:
    store.db.create_queue("q")
    enqueue(store, b"\xc1", id="bad")
    packed = store.with_codec("msgpack")
    with packed.begin() as tx:
        tx.enqueue("q", {"a": 1}, id="good")
    bad, good = packed.queue("q").claim(5)
    assert good.payload == {"a": 1}
    with pytest.raises(postroom.WrongType):
        _ = bad.payload
    bad.reject(dead=True)
