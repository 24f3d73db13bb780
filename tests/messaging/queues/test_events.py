"""Follow-up messages: when a group is done, when a clock strikes, when a message dies."""

from __future__ import annotations

import datetime

import pytest

from postroom.errors import Invalid
from postroom.kv.clock import Timestamp
from postroom.messaging.queues.definition_requests import SetSchedule
from postroom.messaging.queues.queries import ReadSchedules
from postroom.messaging.queues.settling import DEAD_HEADER
from postroom.ranges.checks import unpacked
from tests.messaging.queues.harness import Q, Queues


@pytest.fixture
def queues() -> Queues:
    queues = Queues()
    queues.create(ack_wait=1000.0)
    queues.create("next")
    return queues


# --- groups


def test_the_follower_of_a_group_is_enqueued_with_the_last_acknowledgement(
    queues: Queues,
) -> None:
    queues.enqueue(b"1", b"2", b"3", group="g")
    queues.enqueue(b"another", group="other")
    queues.when_done("g", queues.message(b"all done", "next"))
    queues.when_done("g", queues.message(b"really", "next"))
    messages = [message for message in queues.claim(9) if message.group == "g"]
    for message in messages[:2]:
        queues.acknowledge(message)
    assert queues.claim(name="next", wait=False) == []
    queues.acknowledge(messages[2])
    assert queues.payloads(name="next") == [b"all done", b"really"]
    queues.pass_time(10)
    assert queues.claim(name="next", wait=False) == []


def test_the_follower_of_an_empty_group_is_enqueued_at_once(queues: Queues) -> None:
    queues.when_done("g", queues.message(b"at once", "next"))
    assert queues.payloads(name="next") == [b"at once"]
    queues.enqueue(b"1", group="g")
    queues.acknowledge(*queues.claim())
    assert queues.claim(name="next", wait=False) == []


def test_a_dead_message_holds_its_group_up_until_it_is_replayed_or_cancelled(
    queues: Queues,
) -> None:
    for id_ in (b"x", b"y"):
        queues.enqueue(id_, group="g", id=id_)
    queues.when_done("g", queues.message(b"done", "next"))
    queues.reject(*queues.claim(2), dead=True)
    assert queues.claim(name="next", wait=False) == []
    queues.replay(b"x")
    queues.acknowledge(*queues.claim())
    assert queues.claim(name="next", wait=False) == []
    queues.cancel(b"y")
    assert queues.payloads(name="next") == [b"done"]


def test_a_follower_in_the_same_queue_and_a_group_is_counted(queues: Queues) -> None:
    queues.enqueue(b"1", group="g")
    queues.when_done("g", queues.message(b"2", group="h"))
    queues.when_done("h", queues.message(b"too early"))
    queues.acknowledge(*queues.claim(1))
    assert sorted(queues.payloads()) == [b"2", b"too early"]


def test_a_group_needs_a_name_and_a_follower_a_queue(queues: Queues) -> None:
    with pytest.raises(Invalid, match="needs a group"):
        queues.when_done("", queues.message(b"x"))
    with pytest.raises(Invalid, match="no queue"):
        queues.when_done("g", queues.message(b"x", "nowhere"))


# --- dead letter queues


def test_the_dead_go_to_the_queue_that_is_named_for_them(queues: Queues) -> None:
    queues.update(dead_letter_queue="next", max_attempts=1)
    queues.enqueue(b"1", id=b"x", key=b"key", kind="k", headers={"a": 1})
    queues.reject(*queues.claim(), reason="nonsense")
    (moved,) = queues.claim(name="next")
    assert (moved.payload, moved.kind, moved.key) == (b"1", "k", b"key")
    headers = unpacked(moved.headers)
    assert headers["a"] == 1
    assert headers[DEAD_HEADER] == {
        "queue": Q, "kind": "k", "id": b"x", "key": b"key", "reason": "nonsense", "attempts": 1,
    }  # fmt: skip
    assert queues.list("dead") == []
    counts = queues.counts()
    assert (counts["buried"], counts["rejected"]) == (1, 1)


def test_dead_messages_stay_if_their_dead_letter_queue_is_gone(queues: Queues) -> None:
    queues.update(dead_letter_queue="next", max_attempts=1)
    queues.drop("next")
    queues.enqueue(b"1")
    queues.reject(*queues.claim())
    assert len(queues.list("dead")) == 1


# --- periodic


def ticks(queues: Queues) -> list[str]:
    """Return the messages of schedules that were fired, by their ids."""
    found = []
    while messages := queues.claim(10, wait=False):
        found += [message.id.decode() for message in messages]
        queues.acknowledge(*messages)
    return found


def at(queues: Queues) -> datetime.datetime:
    return Timestamp(queues.now()).datetime


@pytest.fixture
def cron() -> None:
    pytest.importorskip("cronsim")


@pytest.mark.usefixtures("cron")
def test_a_schedule_enqueues_once_a_tick(queues: Queues) -> None:
    queues.commit(SetSchedule(Q, "often", "*/5 * * * *", payload=b"now", kind="k"))
    began = at(queues)
    queues.pass_time(1800)
    found = ticks(queues)
    assert len(found) == 6
    first = datetime.datetime.fromisoformat(found[0].partition("@")[2])
    assert began < first <= began + datetime.timedelta(minutes=5)
    assert first.minute % 5 == first.second == 0


@pytest.mark.usefixtures("cron")
def test_the_latest_of_missed_ticks_is_made_up_for(queues: Queues) -> None:
    queues.commit(SetSchedule(Q, "often", "* * * * *"))
    queues.pass_time(61)
    assert len(ticks(queues)) == 1
    queues.store.restart(after_seconds=3600)
    queues.pass_time(1)
    (found,) = ticks(queues)
    assert at(queues) - datetime.datetime.fromisoformat(found.partition("@")[2]) < (
        datetime.timedelta(minutes=2)
    )


@pytest.mark.usefixtures("cron")
def test_a_schedule_that_is_set_again_does_not_strike_twice(queues: Queues) -> None:
    queues.commit(SetSchedule(Q, "often", "* * * * *"))
    queues.pass_time(60)
    queues.commit(SetSchedule(Q, "often", "* * * * *", payload=b"changed"))
    queues.pass_time(60)
    assert len(set(ticks(queues))) == 2
    assert [each.payload for each in queues.send(ReadSchedules(Q))] == [b"changed"]
    queues.commit(SetSchedule(Q, "often", None))
    queues.pass_time(300)
    assert ticks(queues) == []
    assert queues.send(ReadSchedules(Q)) == []


@pytest.mark.usefixtures("cron")
def test_a_schedule_follows_its_time_zone_over_a_change_of_the_clocks(queues: Queues) -> None:
    queues.store.clock.epoch_milliseconds = 1_711_756_800_000  # 2024-03-30 00:00 UTC
    queues.commit(SetSchedule(Q, "nightly", "0 3 * * *", timezone="Europe/Berlin"))
    queues.pass_time(2 * 86400)
    assert ticks(queues) == [
        "nightly@2024-03-30T02:00:00+00:00",
        "nightly@2024-03-31T01:00:00+00:00",
    ]


@pytest.mark.usefixtures("cron")
def test_a_wrong_cron_expression_or_time_zone_is_refused(queues: Queues) -> None:
    with pytest.raises(Invalid, match="no cron expression"):
        queues.commit(SetSchedule(Q, "x", "61 * * * *"))
    with pytest.raises(Invalid, match="no time zone"):
        queues.commit(SetSchedule(Q, "x", "* * * * *", timezone="Mars/Olympus"))


def test_a_message_that_dies_in_a_purging_step_is_purged_in_time(queues: Queues) -> None:
    queues.create("short", ack_wait=1.0, purge_after=0.0, max_attempts=1, dead_letter_queue="next")
    queues.enqueue(b"1", b"2", name="short")
    first, _ = queues.claim(2, name="short")
    queues.acknowledge(first, name="short")
    queues.store.clock.seconds += 10_000  # both are due: the purge, and the lease
    for _ in range(2):
        queues.pass_time(10_000)
    assert queues.stats("short").purged == 2


@pytest.mark.parametrize(
    ("cron", "latest", "following"),
    [
        ("30 2 * * *", "2024-10-27T00:30", "2024-10-28T01:30"),
        ("0 * * * *", "2024-10-27T01:00", "2024-10-27T02:00"),
        ("*/10 * * * *", "2024-10-27T01:10", "2024-10-27T01:20"),
        ("15 2,3 * * *", "2024-10-27T00:15", "2024-10-27T02:15"),
    ],
)
def test_after_an_outage_that_ends_in_an_hour_that_comes_for_the_second_time(
    queues: Queues, cron: str, latest: str, following: str
) -> None:
    queues.commit(SetSchedule(Q, "s", cron, "Europe/Berlin"))
    ends = datetime.datetime(2024, 10, 27, 1, 10, 5, tzinfo=datetime.UTC)
    queues.store.clock.seconds += (ends - Timestamp(queues.now()).datetime).total_seconds()
    queues.pass_time(1)
    queues.commit(SetSchedule(Q, "set then", cron, "Europe/Berlin"))
    queues.pass_time(1)
    ids = [f"s@{latest}:00+00:00".encode()]
    assert [message.id for message in queues.claim(9)] == ids
    then = datetime.datetime.fromisoformat(following + "+00:00")
    queues.store.clock.seconds += (then - Timestamp(queues.now()).datetime).total_seconds()
    queues.pass_time(1)
    both = [f"{name}@{following}:00+00:00".encode() for name in ("s", "set then")]
    assert sorted(message.id for message in queues.claim(9)) == both
