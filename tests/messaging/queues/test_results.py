"""Results of tasks: kept with the end of a message, told to those who wait, and deleted in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from postroom.errors import Invalid, LeaseLost
from postroom.kv import keys
from postroom.limits import RESULT_SECONDS_MAX
from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.messaging.queues.queries import ListGroupResults, ReadResult, ToldResult
from postroom.messaging.queues.requests import Acknowledge, KeepResult, RejectMessages, TaskFailure
from postroom.ranges.requests import Get, Put
from tests.client.hand_driver import Running
from tests.messaging.queues.harness import Q, Queues, attempt, by_id

FAILURE = TaskFailure("ValueError", "no such film", "the traceback")
SUBSPACES = {keys.EXPIRING, keys.RESULTS, keys.GROUP_RESULTS}


@pytest.fixture
def queues() -> Iterator[Queues]:
    queues = Queues()
    queues.create(ack_wait=10.0, max_attempts=2, purge_after=100.0)
    yield queues
    queues.store.node.close()


def claimed(queues: Queues, id_: bytes = b"1", **options: Any) -> StoredQueueMessage:
    queues.enqueue(b"x", id=id_, **options)
    (message,) = queues.claim()
    return message


def finish(
    queues: Queues, message: StoredQueueMessage, value: bytes | None = b"r", seconds: float = 50.0
) -> None:
    """Acknowledge a message with a result."""
    named = attempt(message)
    queues.commit(KeepResult(Q, named, seconds, value), Acknowledge(Q, [named]))


def bury(queues: Queues, message: StoredQueueMessage) -> None:
    named = attempt(message)
    keep = KeepResult(Q, named, 50.0, failure=FAILURE)
    queues.commit(keep, RejectMessages(Q, [named], dead=True, reason="ValueError: no such film"))


def told(queues: Queues, id_: bytes = b"1", **options: Any) -> ToldResult:
    result: ToldResult = queues.send(ReadResult(Q, id_, **options))
    return result


def waiting(queues: Queues, id_: bytes = b"1", number: int = 1) -> list[Running[ToldResult]]:
    return [queues.start(ReadResult(Q, id_, wait=True)) for _ in range(number)]


def waits(queues: Queues) -> int:
    return queues.store.node.sizes()["queue token waits"]


def left(queues: Queues) -> list[bytes]:
    """Return the stored records of results."""
    return [key for key in queues.stored() if key[:1] == keys.RANGE and key[14:15] in SUBSPACES]


def group_of(queues: Queues, group: str, results_max: int = 100) -> list[tuple[bytes, Any]]:
    found, after = [], b""
    while True:
        page = queues.send(ListGroupResults(Q, group, after, results_max))
        found += [(each.id, each.value) for each in page.results]
        after = page.next
        if not after:
            return found


def test_a_result_takes_effect_with_the_acknowledgement_and_the_work(queues: Queues) -> None:
    message = claimed(queues)
    assert told(queues) == ToldResult("pending")
    named = attempt(message)
    queues.commit(Put(b"work", b"1"), KeepResult(Q, named, 50, b"r"), Acknowledge(Q, [named]))
    assert told(queues) == ToldResult("returned", b"r")
    assert queues.stats().results == 1


def test_an_attempt_that_holds_its_message_no_more_keeps_no_result(queues: Queues) -> None:
    message = claimed(queues)
    queues.pass_time(60)
    (again,) = queues.claim()
    with pytest.raises(LeaseLost):
        queues.commit(Put(b"work", b"1"), KeepResult(Q, attempt(message), 50, b"late"))
    assert queues.send(Get(b"work")).value is None
    finish(queues, again)
    with pytest.raises(LeaseLost):
        finish(queues, message, b"late")
    assert told(queues).value == b"r"


def test_a_result_of_an_id_is_refused(queues: Queues) -> None:
    queues.enqueue(b"x", id=b"1")
    with pytest.raises(Invalid, match="name the attempt"):
        queues.commit(KeepResult(Q, by_id(b"1"), 50, b"r"))


def test_a_thousand_readers_are_told_by_one_acknowledgement(queues: Queues) -> None:
    message = claimed(queues)
    waiters = waiting(queues, number=1000)
    others = waiting(queues, claimed(queues, b"2").id)
    assert waits(queues) == 1001
    finish(queues, message)
    queues.store.driver.settle()
    assert {each.result().value for each in waiters} == {b"r"}
    assert waits(queues) == 1
    assert not others[0].done


def test_readers_that_give_up_leave_nothing_behind(queues: Queues) -> None:
    message = claimed(queues)
    for each in waiting(queues, number=100):
        queues.store.driver.cancel(each)
    assert waits(queues) == 0
    finish(queues, message)
    assert queues.range_queues.waits.take_woken() == []


def test_a_wait_ends_with_the_message_however_it_ends(queues: Queues) -> None:
    ends = {
        b"cancelled": lambda message: queues.cancel(message.id),
        b"dead": lambda message: bury(queues, message),
        b"done": queues.acknowledge,
        b"named": lambda message: queues.acknowledge_id(message.id),
    }
    found = {}
    for id_, end in ends.items():
        message = claimed(queues, id_)
        (waiter,) = waiting(queues, id_)
        end(message)
        queues.store.driver.settle()
        found[id_] = waiter.result()
    assert found == {
        b"cancelled": ToldResult("failed", None, TaskFailure("", "the message was cancelled")),
        b"dead": ToldResult("failed", None, FAILURE),
        b"done": ToldResult("none"),
        b"named": ToldResult("none"),
    }


def test_a_message_whose_workers_vanish_has_failed_in_the_end(queues: Queues) -> None:
    claimed(queues)
    (waiter,) = waiting(queues)
    queues.pass_time(15)
    assert not waiter.done
    queues.pass_time(60)
    assert len(queues.claim()) == 1
    queues.pass_time(15)
    assert waiter.result().failure == TaskFailure("", "it was not acknowledged in time")


def test_a_message_in_the_dead_letter_queue_has_failed_here(queues: Queues) -> None:
    queues.create("dead")
    queues.update(dead_letter_queue="dead")
    (waiter, _) = waiting(queues, claimed(queues, b"2").id, 2)
    bury(queues, queues.list("leased")[0])
    assert waiter.result() == told(queues, b"2") == ToldResult("failed", None, FAILURE)


def test_a_wait_outlives_failed_attempts_and_a_replay_begins_anew(queues: Queues) -> None:
    message = claimed(queues)
    (waiter,) = waiting(queues)
    queues.reject(message, delay=0.0, reason="first")
    (message,) = queues.claim()
    assert not waiter.done
    bury(queues, message)
    assert waiter.result().failure == FAILURE
    queues.replay(b"1")
    assert told(queues) == ToldResult("pending")
    (message,) = queues.claim()
    finish(queues, message)
    assert told(queues) == ToldResult("returned", b"r")
    assert (queues.stats().results, len(left(queues))) == (1, 2)


def test_a_reader_does_not_wait_for_a_message_that_is_not_there(queues: Queues) -> None:
    assert told(queues, b"unknown", wait=True) == ToldResult("unknown")
    claimed(queues, kind="films")
    assert told(queues, wait=True) == ToldResult("unknown")
    assert told(queues, kind="films") == ToldResult("pending")


def test_a_result_may_outlive_its_message_and_is_not_that_of_the_next_one(queues: Queues) -> None:
    queues.update(purge_after=0)
    finish(queues, claimed(queues), seconds=1000.0)
    queues.pass_time(200)
    assert queues.get(b"1") == []
    assert told(queues).value == b"r"
    message = claimed(queues)
    assert told(queues) == ToldResult("pending")
    queues.acknowledge(message)
    assert told(queues) == ToldResult("none")


@pytest.mark.parametrize("restarted", [False, True])
def test_results_go_when_their_time_is_over(queues: Queues, *, restarted: bool) -> None:
    queues.update(archive=True)
    for number, seconds in enumerate((30.0, 10.0, 20.0)):
        finish(queues, claimed(queues, b"%d" % number, group="g"), seconds=seconds)
    assert len(left(queues)) == 9
    if restarted:
        queues.store.restart()
    queues.pass_time(15)
    assert (queues.stats().results, len(left(queues))) == (2, 6)
    queues.pass_time(16)
    assert (queues.stats().results, left(queues)) == (0, [])
    assert told(queues, b"1") == ToldResult("none")


def test_a_result_whose_time_is_over_is_not_told_before_it_is_deleted(queues: Queues) -> None:
    finish(queues, claimed(queues, group="g"), seconds=10.0)
    queues.store.restart(services=False, after_seconds=11)
    assert len(left(queues)) == 3
    assert told(queues) == ToldResult("none")
    assert group_of(queues, "g") == []


def test_a_result_is_kept_for_a_year_at_most(queues: Queues) -> None:
    finish(queues, claimed(queues), seconds=1e300)
    until = queues.manager().results_until
    assert (until - queues.now()) >> 16 <= RESULT_SECONDS_MAX * 1000


def test_the_results_of_a_group_are_listed_in_the_order_of_its_messages(queues: Queues) -> None:
    messages = [claimed(queues, b"%d" % number, group="g") for number in range(5)]
    claimed(queues, b"other", group="gg")
    for message in reversed(messages[:4]):
        finish(queues, message, b"r" + message.id)
    bury(queues, messages[4])
    expected = [(b"%d" % number, b"r%d" % number) for number in range(4)]
    assert group_of(queues, "g") == group_of(queues, "g", 1) == expected


def test_a_dropped_queue_takes_its_results_and_those_who_wait_with_it(queues: Queues) -> None:
    finish(queues, claimed(queues, group="g"))
    claimed(queues, b"2")
    (waiter,) = waiting(queues, b"2")
    queues.drop()
    queues.store.driver.settle()
    with pytest.raises(Invalid, match="no queue 'emails'"):
        waiter.result()
    queues.pass_time(10)
    assert (left(queues), waits(queues)) == ([], 0)


def test_a_large_pile_of_results_goes_in_steps(queues: Queues) -> None:
    queues.update(purge_after=0)
    ids = [b"%04d" % number for number in range(3000)]
    for first in range(0, len(ids), 1000):
        queues.commit(*(queues.message(id=id_) for id_ in ids[first : first + 1000]))
    while messages := queues.claim(1000, wait=False):
        named = [attempt(each) for each in messages]
        queues.commit(*(KeepResult(Q, each, 10.0, b"r") for each in named), Acknowledge(Q, named))
    assert queues.stats().results == 3000
    queues.pass_time(12)
    assert (queues.stats().results, left(queues)) == (0, [])
