"""Requests that are well-formed, and would stop a queue for everybody if they were believed."""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from postroom.errors import Invalid, ValueTooLarge
from postroom.kv.clock import from_seconds
from postroom.limits import HEADERS_BYTES_MAX, LEASE_SECONDS_MAX
from postroom.messaging.queues import periodic
from postroom.messaging.queues.claim_requests import ClaimSelection
from postroom.messaging.queues.definition_requests import SetSchedule, UpdateQueue
from postroom.messaging.queues.requests import EnqueueInQueue, WhenDone
from postroom.ranges.checks import unpacked
from tests.messaging.queues.harness import Q, Queues

DEEP: dict[str, object] = {"a": 1}
for _ in range(60):
    DEEP = {"a": DEEP}


@pytest.fixture
def queues() -> Queues:
    queues = Queues()
    queues.create(ack_wait=1000.0)
    queues.create("next")
    return queues


@pytest.mark.parametrize("seconds", [1e300, 1e15])
def test_a_lease_of_any_length_ends_within_a_year(queues: Queues, seconds: float) -> None:
    queues.enqueue(b"1")
    [message] = queues.claim(seconds=seconds)
    assert message.leased_until <= queues.now() + from_seconds(LEASE_SECONDS_MAX)


def test_an_endless_lease_is_no_lease(queues: Queues) -> None:
    queues.enqueue(b"1")
    [message] = queues.claim(seconds=float("inf"))
    queues.extend(message, float("inf"))
    queues.reject(message, delay=float("inf"))


def test_a_message_with_many_headers_dies_into_another_queue(queues: Queues) -> None:
    queues.create("mortal", max_attempts=1, dead_letter_queue="next", ack_wait=1.0)
    full = {"x": "y" * (HEADERS_BYTES_MAX - 20)}
    queues.enqueue(b"1", name="mortal", headers=full)
    assert queues.payloads(name="mortal") == [b"1"]
    queues.pass_time(5)
    [dead] = queues.claim(name="next", wait=False)
    headers = unpacked(dead.headers)
    assert headers["dead"]["queue"] == "mortal"
    assert headers["x"] == full["x"]


def test_a_follower_that_is_there_already_does_not_keep_its_group_from_ending(
    queues: Queues,
) -> None:
    queues.create("strict", on_duplicate="error")
    queues.enqueue(b"1", group="g")
    queues.when_done("g", queues.message(b"follower", "strict", id=b"same"))
    queues.enqueue(b"before", name="strict", id=b"same")
    assert queues.acknowledge(*queues.claim()) == 1
    assert queues.payloads(name="strict") == [b"before"]


def test_a_follower_with_an_id_said_to_be_made_up_does_not_either(queues: Queues) -> None:
    queues.enqueue(b"1", group="g")
    follower = EnqueueInQueue("next", b"k", "", b"same", b"follower", is_unique=True)
    queues.when_done("g", follower)
    queues.when_done("g", follower)
    assert queues.acknowledge(*queues.claim()) == 1
    assert queues.payloads(name="next") == [b"follower"]


def test_a_follower_is_checked_when_it_is_asked_for(queues: Queues) -> None:
    queues.enqueue(b"1", group="g")
    with pytest.raises(Invalid):
        queues.commit(WhenDone(Q, "g", queues.message(b"f", "next", headers=DEEP)))
    assert queues.acknowledge(*queues.claim()) == 1


def test_followers_of_a_group_take_a_bounded_room(queues: Queues) -> None:
    queues.enqueue(b"1", group="g")
    large = bytes(1 << 20)
    queues.when_done("g", queues.message(large, "next"))
    with pytest.raises(ValueTooLarge, match="followers"):
        queues.when_done("g", queues.message(large, "next"))


def test_a_schedule_is_checked_when_it_is_set(queues: Queues) -> None:
    with pytest.raises(Invalid):
        queues.commit(SetSchedule(Q, "n", "* * * * *", headers=DEEP))
    with pytest.raises(Invalid):
        queues.commit(SetSchedule(Q, "\N{SNOWMAN}" * 250, "* * * * *"))


def test_many_large_ticks_at_once_are_enqueued_in_steps(queues: Queues) -> None:
    for number in range(40):
        queues.commit(SetSchedule(Q, f"n{number}", "* * * * *", payload=bytes(1 << 20)))
    queues.pass_time(61)
    assert queues.counts()["enqueued"] == 40


def test_a_time_zone_that_is_gone_stops_its_schedule_alone(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.commit(SetSchedule(Q, "broken", "* * * * *", timezone="Europe/Paris", payload=b"b"))
    queues.commit(SetSchedule(Q, "sound", "* * * * *", payload=b"s"))

    def zone(name: str) -> ZoneInfo:
        if name == "Europe/Paris":
            raise ZoneInfoNotFoundError(name)
        return ZoneInfo(name)

    with monkeypatch.context() as patched:
        patched.setattr(periodic, "ZoneInfo", zone)
        queues.enqueue(b"later", after=30)
        queues.pass_time(130)
        assert sorted(queues.payloads()) == [b"later", b"s", b"s"]
    queues.pass_time(61)
    assert sorted(queues.payloads()) == [b"b", b"s"]


def test_queues_of_dead_letters_are_no_circle(queues: Queues) -> None:
    queues.create("a")
    queues.create("b", dead_letter_queue="a")
    queues.create("c", dead_letter_queue="b")
    with pytest.raises(Invalid, match="circle"):
        queues.update("a", dead_letter_queue="c")
    queues.update("a", dead_letter_queue="next")


def test_an_empty_queue_gets_another_order(queues: Queues) -> None:
    queues.enqueue(b"done")
    queues.acknowledge(*queues.claim())
    queues.update(order="group")
    queues.enqueue(b"1", b"2", group="g")
    assert queues.payloads() == [b"1"]


def test_a_message_enqueued_with_a_change_of_order_is_found_again(queues: Queues) -> None:
    """The place of an entry depends on the order, and is not stored anywhere else."""
    message = queues.message(b"1", id=b"x", priority=5)
    queues.commit(UpdateQueue(Q, {"order": "group"}), message)
    [found] = queues.get(b"x")
    assert found.state == "ready"
    assert queues.cancel(b"x") == 1
    with pytest.raises(Invalid, match="order"):
        queues.commit(message, UpdateQueue(Q, {"order": "none"}))
    with pytest.raises(Invalid, match="no setting"):
        queues.commit(UpdateQueue(Q, {"order": "none"}), message, UpdateQueue(Q, {"what": 1}))
    queues.commit(message)
    assert [each.state for each in queues.get(b"x")] == ["ready"]
    assert queues.payloads() == [b"1"]


def test_a_timer_that_never_rang_is_made_up_for_by_the_poller(queues: Queues) -> None:
    queues.update(poller_interval=7.0)
    queues.enqueue(b"later", after=2)
    queues.manager().first_due = 0
    queues.pass_time(5)
    assert queues.claim(wait=False) == []
    queues.pass_time(4)
    assert queues.payloads() == [b"later"]


def test_a_large_queue_is_dropped_without_stepping_over_what_is_deleted(queues: Queues) -> None:
    for _ in range(4):
        queues.enqueue(*(b"%d" % n for n in range(1000)))
    manager = queues.manager()
    queues.drop()
    for _ in range(100):
        if queues.range_queues._dropped:
            queues.pass_time(0.01)
    assert not queues.range_queues._dropped
    assert queues.stored() == {}
    assert manager.empty_from > manager.layout.whole


def test_a_message_held_by_a_transaction_goes_back_under_the_next_leader(queues: Queues) -> None:
    transaction = queues.transaction().transaction_id
    queues.enqueue(b"1")
    assert len(queues.claim(transaction_id=transaction)) == 1
    range_queues = queues.range_queues
    range_queues.restart(queues.store.driver.node.engine)
    assert queues.counts()["leased"] == 1
    range_queues.claiming.release(transaction)
    queues.pass_time(1)
    assert "leased" not in queues.counts()


def test_headers_are_read_once_for_consumers_that_take_none_of_them(queues: Queues) -> None:
    queues.update(cache_size=1000)
    queues.enqueue(*(b"%d" % n for n in range(200)), headers={"a": 1})
    running = queues.start(
        queues.claim_request(wait=True, selection=ClaimSelection(where={"a": 2}))
    )
    queues.pass_time(1)
    manager = queues.manager()
    read = []
    headers = manager._headers
    for wish in manager.wishes:
        wish._headers = lambda entry: read.append(entry) or headers(entry)  # type: ignore
    for _ in range(5):
        queues.enqueue(b"another", headers={"a": 1})
    assert len(read) <= 10
    queues.enqueue(b"this", headers={"a": 2})
    queues.pass_time(1)
    assert [m.payload for m in running.result().messages] == [b"this"]


def test_many_large_messages_that_die_at_once_move_in_steps(queues: Queues) -> None:
    queues.create("mortal", max_attempts=1, dead_letter_queue="next", ack_wait=5.0, batch_size=100)
    for _ in range(40):
        queues.enqueue(bytes(1 << 20), name="mortal")
    for _ in range(10):
        queues.claim(100, name="mortal", wait=False)
    assert queues.counts("mortal")["leased"] == 40
    queues.pass_time(20)
    assert queues.counts("next") == {"ready": 40, "enqueued": 40}


def test_a_client_that_goes_with_many_large_messages_does_not_stop_the_queue(
    queues: Queues,
) -> None:
    queues.create("mortal", max_attempts=1, dead_letter_queue="next", batch_size=100)
    for _ in range(40):
        queues.enqueue(bytes(1 << 20), name="mortal")
    for _ in range(10):
        queues.claim(100, name="mortal", wait=False, consumer=queues.consumer(1, b"stranger"))
    queues.range_queues.claiming.client_gone(b"stranger")
    queues.pass_time(20)
    assert queues.counts("next") == {"ready": 40, "enqueued": 40}
