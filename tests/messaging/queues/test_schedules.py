"""Times of firing: schedules, priorities, other times, unique ids, and failures of clients."""

from __future__ import annotations

import pytest

from postroom.errors import ConditionFailed, Invalid
from postroom.kv.clock import from_seconds
from postroom.messaging import due as times
from postroom.messaging.queues.records import AGEING_SECONDS
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.ranges.checks import unpacked
from tests.messaging.queues.harness import Q, Queues


@pytest.fixture
def queues() -> Queues:
    queues = Queues()
    queues.create(ack_wait=10.0)
    return queues


def seconds(length: int) -> float:
    return (length >> 16) / 1000


# --- schedules and priorities


def test_a_scheduled_message_is_fired_at_its_time_and_not_at_the_next_poll(queues: Queues) -> None:
    waiting = queues.start(queues.claim_request(wait=True))
    queues.enqueue(b"later", after=1.234)
    queues.enqueue(b"much later", after=86400 * 300)
    due = queues.now() + from_seconds(1.234)
    while not waiting.done:
        queues.store.driver._pass_time()
    (message,) = waiting.result().messages
    assert message.payload == b"later"
    assert message.scheduled == message.first_scheduled
    assert 0 <= seconds(queues.now() - due) <= 0.005
    assert queues.stats().lateness_p99 is not None
    assert queues.counts() == {"enqueued": 2, "scheduled": 1, "leased": 1, "fired": 1}


def test_a_claim_that_waits_gets_a_message_at_its_moment(queues: Queues) -> None:
    waiting = queues.start(queues.claim_request(wait=True))
    queues.enqueue(b"later", due=times.at(queues.now() + from_seconds(5.0)))
    queues.pass_time(4.0)
    assert not waiting.done
    queues.pass_time(2.0)
    assert [each.payload for each in waiting.result().messages] == [b"later"]


def test_a_message_is_ready_at_its_moment_though_nobody_claims(queues: Queues) -> None:
    queues.enqueue(b"later", due=times.at(queues.now() + from_seconds(5.0)))
    queues.pass_time(6.0)
    assert queues.counts() == {"enqueued": 1, "ready": 1}


def test_many_that_are_due_come_in_order_though_consumers_come_late(queues: Queues) -> None:
    for number in range(600):
        queues.enqueue(b"%03d" % number, after=1 + (599 - number) / 100)
    queues.pass_time(8)
    assert queues.counts()["ready"] == 600
    got: list[bytes] = []
    while len(got) < 600:
        got += queues.payloads()
    assert got == sorted(got, reverse=True)


def test_the_most_urgent_is_first_but_ages_do_not_wait_for_ever(queues: Queues) -> None:
    queues.enqueue(b"low", priority=2)
    queues.enqueue(b"normal")
    queues.enqueue(b"high", priority=-2)
    (high,) = queues.claim(1)
    assert high.payload == b"high"
    queues.acknowledge(high)
    queues.pass_time(2 * AGEING_SECONDS - 1)
    queues.enqueue(b"normal, just before low's time")
    queues.pass_time(2)
    queues.enqueue(b"normal, too late")
    assert queues.payloads(1) == [b"normal"]
    queues.update(ack_wait=10_000.0)
    assert queues.payloads() == [b"normal, just before low's time", b"low", b"normal, too late"]


def test_a_wall_clock_that_is_set_forward_ends_no_lease(queues: Queues) -> None:
    queues.enqueue(b"1")
    (message,) = queues.claim()
    queues.store.clock.epoch_milliseconds += 3_600_000
    queues.pass_time(5)
    assert queues.acknowledge(message) == 1


def test_a_lease_does_not_end_early_after_a_leader_whose_clock_was_ahead(queues: Queues) -> None:
    """Its own clock is right, but what it hands out is above all that was handed out before."""
    queues.enqueue(b"1")
    (message,) = queues.claim()
    queues.store.clock.epoch_milliseconds += 3_600_000
    queues.enqueue(b"2")
    queues.store.clock.epoch_milliseconds -= 3_600_000
    queues.store.restart(after_seconds=1)
    queues.pass_time(5)
    assert queues.acknowledge(message) == 1


def test_a_message_can_be_fired_at_another_time(queues: Queues) -> None:
    queues.enqueue(b"1", id=b"1", after=1000)
    queues.enqueue(b"2", id=b"2")
    assert queues.reschedule(b"2", due=queues.now() + from_seconds(50)) == 1
    assert queues.claim(wait=False) == []
    assert queues.reschedule(b"1", b"nobody", epoch=7) == 1
    (message,) = queues.claim()
    assert (message.id, message.epoch) == (b"1", 7)
    assert queues.reschedule(b"1") == 0  # it is held
    queues.acknowledge(message)
    queues.pass_time(51)
    assert queues.payloads() == [b"2"]


def test_chronic_failures_are_brought_forward_in_bulk(queues: Queues) -> None:
    ids = [b"%d" % number for number in range(20)]
    for id_ in ids:
        queues.enqueue(id_, id=id_)
    for _ in range(2):
        queues.reject(*queues.claim(10), delay=5000.0, reason="down")
    assert queues.counts()["scheduled"] == 20
    assert queues.reschedule(*ids, epoch=0) == 20
    messages = queues.claim(10)
    assert {(message.epoch, message.last_error) for message in messages} == {(0, "down")}


def test_a_message_can_be_cancelled_wherever_it_is(queues: Queues) -> None:
    queues.enqueue(b"1", id=b"held")
    (held,) = queues.claim()
    queues.enqueue(b"2", id=b"ready")
    queues.enqueue(b"3", id=b"scheduled", after=10)
    queues.enqueue(b"4", id=b"done")
    assert queues.acknowledge_id(b"done") == 1
    assert queues.cancel(b"held", b"ready", b"scheduled", b"done", b"nobody") == 3
    assert queues.cancel(b"held") == 0
    queues.pass_time(60)
    assert queues.claim(wait=False) == []
    assert queues.list() == []
    assert queues.get(b"held") == []
    assert queues.counts() == {
        "enqueued": 4, "cancelled": 3, "done": 1, "acknowledged": 1, "fired": 1,
    }  # fmt: skip
    with pytest.raises(Exception, match="was given up"):
        queues.acknowledge(held)


# --- unique ids


def test_a_duplicate_is_ignored_whatever_its_key_and_kinds_are_apart(queues: Queues) -> None:
    assert queues.enqueue(b"1", id=b"x") == [None]
    assert queues.enqueue(b"2", id=b"x") == ["ignored"]
    assert queues.enqueue(b"3", id=b"x", key=b"elsewhere") == ["ignored"]
    assert queues.enqueue(b"4", id=b"x", kind="other") == [None]
    assert queues.enqueue(b"5", id=b"y", key=b"elsewhere") == [None]
    assert queues.enqueue(b"6", id=b"y") == ["ignored"]
    assert queues.enqueue(b"7", id=b"y", key=b"a third") == ["ignored"]
    assert queues.payloads() == [b"1", b"4", b"5"]
    assert queues.enqueue(b"8", id=b"x") == ["ignored"]
    queues.acknowledge_id(b"x")
    assert queues.enqueue(b"9", id=b"x") == ["ignored"]  # kept for a day


def test_an_id_that_is_said_to_be_made_up_and_is_not_is_refused(queues: Queues) -> None:
    queues.enqueue(b"1")
    again = EnqueueInQueue(Q, b"made up 1", "", b"made up 1", b"2", is_unique=True)
    with pytest.raises(Invalid, match="no made-up id"):
        queues.commit(again)
    assert queues.payloads() == [b"1"]


def test_two_in_one_transaction_are_one(queues: Queues) -> None:
    answers = queues.commit(queues.message(b"1", id=b"x"), queues.message(b"2", id=b"x"))
    assert answers == [None, "ignored"]
    assert queues.payloads() == [b"1"]


def test_a_duplicate_is_an_error_if_the_queue_says_so(queues: Queues) -> None:
    queues.update(on_duplicate="error")
    queues.enqueue(b"1", id=b"x")
    with pytest.raises(ConditionFailed, match="has a message b'x'"):
        queues.enqueue(b"2", id=b"x")


def test_a_duplicate_replaces_what_was_never_fired(queues: Queues) -> None:
    queues.update(on_duplicate="replace")
    queues.enqueue(b"1", id=b"x", after=1000, group="a")
    assert queues.enqueue(b"2", id=b"x", priority=3, group="b", headers={"n": 2}) == ["replaced"]
    (message,) = queues.claim()
    assert (message.payload, message.priority, message.group) == (b"2", 3, "b")
    assert unpacked(message.headers) == {"n": 2}
    assert queues.enqueue(b"3", id=b"x") == ["ignored"]
    queues.reject(message, delay=0.0)
    assert queues.enqueue(b"3", id=b"x") == ["ignored"]
    assert queues.payloads() == [b"2"]
    assert queues.counts()["enqueued"] == 1


def test_an_id_is_free_again_once_its_message_is_purged(queues: Queues) -> None:
    queues.update(purge_after=0.0)
    for number in range(3):
        assert queues.enqueue(b"%d" % number, id=b"x", key=b"key") == [None]
        queues.acknowledge(*queues.claim())
        assert queues.get(b"x") == []
    queues.enqueue(b"lives", id=b"x", key=b"key")
    queues.pass_time(500)
    assert [message.payload for message in queues.list()] == [b"lives"]
    assert queues.counts()["purged"] == 3


# --- holders of messages that vanish


def test_the_messages_of_a_client_that_has_gone_are_fired_again_and_count(queues: Queues) -> None:
    queues.update(ack_wait=1000.0)
    queues.enqueue(b"1", b"2", b"3")
    gone, there = b"client 1", b"client 2"
    first = queues.claim(2, consumer=queues.consumer(1, gone))
    queues.claim(1, consumer=queues.consumer(1, there))
    replica = queues.store.node.root.replica
    assert replica.holds_for(gone)
    replica.release_client(gone)
    queues.pass_time(1)
    assert not replica.holds_for(gone)
    assert queues.counts()["expired"] == 2
    with pytest.raises(Exception, match="does not hold it any more"):
        queues.acknowledge(first[0])
    queues.pass_time(1100)
    again = queues.claim(5, wait=True)
    assert {(message.epoch, message.last_error) for message in again} == {
        (1, "the consumer has gone")
    }


def test_an_embedded_process_that_was_killed_holds_nothing(queues: Queues) -> None:
    queues.update(ack_wait=1000.0, min_backoff=None, max_backoff=2.0)
    rested = Queues(rests_alone=True)
    rested.create(ack_wait=1000.0, max_backoff=2.0)
    rested.enqueue(b"1")
    rested.claim(consumer=rested.consumer(1, b"killed 1"))
    rested.store.kill()
    (message,) = rested.claim(wait=True)
    assert (message.epoch, message.last_error) == (1, "the consumer has gone")
    assert rested.store.clock.seconds < 10


def test_the_messages_that_a_transaction_claimed_go_back_when_it_ends(queues: Queues) -> None:
    queues.enqueue(b"1", b"2")
    transaction = queues.store.driver.next_id()
    held = queues.claim(2, transaction_id=transaction)
    assert queues.store.node.sizes()["queue claims"] == 1
    queues.acknowledge(held[0])
    queues.store.node.root.replica.release_locks(transaction)
    (message,) = queues.claim(wait=True)
    assert (message.payload, message.epoch) == (b"2", 0)
    assert queues.store.node.sizes()["queue claims"] == 0
    expired = queues.store.driver.next_id()
    queues.acknowledge(message)
    queues.enqueue(b"3")
    queues.claim(1, transaction_id=expired, seconds=500.0)
    queues.pass_time(59)
    assert queues.counts()["leased"] == 1
    queues.pass_time(1.5)
    (late,) = queues.claim()
    assert (late.payload, late.epoch) == (b"3", 1), "its time was over, without a word"


# --- another leaseholder


def test_the_next_leaseholder_goes_on_from_what_is_stored(queues: Queues) -> None:
    queues.enqueue(b"held", b"given back", b"ready", id=None)
    queues.enqueue(b"scheduled", after=50)
    queues.enqueue(b"done")
    held, back = queues.claim(2)
    queues.reject(back, delay=0.0)
    queues.acknowledge(*[each for each in queues.claim(9) if each.payload == b"done"])
    before = queues.counts()
    queues.store.restart(after_seconds=1)
    assert queues.counts() == before
    assert queues.claim(wait=False) == []
    assert queues.acknowledge(held) == 1
    queues.pass_time(100)
    assert sorted(queues.payloads()) == [b"given back", b"ready", b"scheduled"]


def test_a_claim_under_way_is_sent_elsewhere_when_the_lease_ends(queues: Queues) -> None:
    waiting = queues.start(queues.claim_request(wait=True))
    replica = queues.store.node.root.replica
    replica.stop_serving()
    assert queues.store.node.sizes()["queue waits"] == 0
    queues.store.driver.settle()
    with pytest.raises(Exception, match="does not serve the range"):
        waiting.result()


# --- kept, archived, purged, and looked at


def test_a_done_message_is_kept_for_its_time_and_then_leaves_no_record(queues: Queues) -> None:
    queues.update(purge_after=500.0)
    queues.enqueue(*[b"%d" % number for number in range(30)])
    queues.enqueue(b"cancelled", id=b"c", key=b"elsewhere")
    queues.cancel(b"c")
    while messages := queues.claim(10, wait=False):
        queues.acknowledge(*messages)
    assert len(queues.list("done")) == 30
    queues.pass_time(400)
    assert len(queues.list("done")) == 30
    assert queues.get(b"made up 1")[0].state == "done"
    queues.pass_time(200)
    assert queues.list("done") == []
    queues.pass_time(100)
    left = [key for key in queues.stored() if key[:1] == b"\x06"]
    assert left == []
    assert queues.counts() == {
        "enqueued": 31, "acknowledged": 30, "cancelled": 1, "purged": 31, "fired": 30,
    }  # fmt: skip


def test_an_archived_message_stays(queues: Queues) -> None:
    queues.update(archive=True, purge_after=10.0)
    for number in range(25):
        queues.enqueue(b"%d" % number)
    while messages := queues.claim(10, wait=False):
        queues.acknowledge(*messages)
    queues.pass_time(1000)
    assert len(queues.list("archived", messages_max=7)) == 25
    (message,) = queues.get(b"made up 1")
    assert (message.state, message.payload) == ("archived", b"0")
    assert len(queues.list("archived", start=message.done_at + 1)) == 15


def test_messages_are_listed_by_state_page_by_page(queues: Queues) -> None:
    for number in range(30):
        queues.enqueue(b"%02d" % number, after=number % 3 * 100)
    queues.claim(4)
    for state, number in (("scheduled", 20), ("ready", 6), ("leased", 4), ("", 30), ("dead", 0)):
        found = queues.list(state, messages_max=3)
        assert len({message.id for message in found}) == len(found) == number, state
        assert all(message.state == (state or message.state) for message in found)
    soon = queues.list("scheduled", end=queues.now() + from_seconds(150))
    assert len(soon) == 10


def test_the_past_is_seen_as_it_was(queues: Queues) -> None:
    queues.enqueue(b"1", b"2", b"3")
    queues.acknowledge(*queues.claim(1))
    then = queues.now()
    queues.enqueue(b"4")
    queues.acknowledge(*queues.claim(1))
    queues.reject(*queues.claim(1), dead=True)
    queues.cancel(b"made up 4")

    def payloads(state: str) -> list[bytes]:
        return sorted(each.payload for each in queues.list(state, timestamp=then, messages_max=1))

    assert payloads("") == [b"2", b"3"]
    assert payloads("done") == [b"1"]
    assert payloads("dead") == []
    queues.pass_time(30)
    assert payloads("") == [b"2", b"3"]
