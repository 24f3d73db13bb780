"""Messages of queues come to their homes in other ranges, once, and their ids stay unique."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from postroom import limits
from postroom.errors import ConditionFailed, Invalid, OutboxFull
from postroom.messaging.handover.channels import LANES
from postroom.messaging.handover.sending import SendingService
from postroom.messaging.queues import crossing, departing
from postroom.messaging.queues.definition_requests import SetSchedule
from postroom.messaging.queues.enqueueing import Enqueueing
from postroom.messaging.queues.maintenance import AdvanceQueues
from postroom.messaging.queues.records import QueueDamaged
from postroom.messaging.queues.requests import (
    Acknowledge,
    Attempt,
    CancelMessages,
    EnqueueInQueue,
    WhenDone,
)
from postroom.messaging.requests import (
    Deliverable,
    DeliverDue,
    ListDeadLetters,
    ReplayDeadLetters,
)
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.held_answers import HELD_SECONDS
from postroom.ranges.requests import Put
from postroom.ranges.transactions.requests import Prepare
from tests.ranges.transactions.participant import SECOND, Participant, answer_of, transaction_id
from tests.ranges.transactions.queue_ranges import (
    DEAD,
    Q,
    QueueRanges,
    advance,
    attempt,
    claim,
    counted,
    drop,
)

A, B, C = b"a", b"n", b"x"
"""Keys of the three ranges."""
PURGE_AFTER: Final = 5.0


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[QueueRanges]:
    """Return a store of three ranges, each with a part of a queue."""
    settings = getattr(request, "param", {})
    store = QueueRanges(b"m", b"w", ack_wait=3.0, purge_after=PURGE_AFTER, **settings)
    yield store
    store.close()


def made_up(id_: bytes, key: bytes | None = None, **options: Any) -> EnqueueInQueue:
    """Return a message with a made-up id."""
    return EnqueueInQueue(Q, key or id_, "", id_, b"payload", is_unique=True, **options)


def given(id_: bytes, key: bytes | None = None, **options: Any) -> EnqueueInQueue:
    """Return a message with an id that somebody gave."""
    payload = options.pop("payload", b"payload")
    return EnqueueInQueue(Q, key or id_, "", id_, payload, **options)


# --- homes


@pytest.mark.parametrize("key", [A, B, C])
@pytest.mark.parametrize("id_", [b"a1", b"n1", b"x1"])
@pytest.mark.parametrize("make", [made_up, given])
def test_a_message_lies_at_its_home_and_its_id_points_there(
    store: QueueRanges, make: Any, id_: bytes, key: bytes
) -> None:
    assert store.enqueued(Put(A, b""), make(id_, key)) == [None, None]
    assert store.pointers() == {id_: key}
    [found] = claim(store.owner(key))
    assert (found.id, found.key, found.payload) == (id_, key, b"payload")
    assert store.counted() == {"enqueued": 1, "leased": 1, "fired": 1}
    assert store.records() == 0


@pytest.mark.parametrize("make", [made_up, given])
def test_a_message_of_a_group_lies_in_the_range_of_that(store: QueueRanges, make: Any) -> None:
    store.enqueued(Put(A, b""), make(b"n1", C, group="group"))
    assert store.pointers() == {b"n1": b"group"}
    [found] = claim(store.members[0])
    assert (found.id, found.key, found.group) == (b"n1", C, "group")


def test_messages_of_a_group_have_the_order_of_their_commits(store: QueueRanges) -> None:
    for number, anchor in enumerate((A, B, A)):
        store.enqueued(Put(anchor, b""), made_up(b"%c%d" % (anchor[0], number), group="y"))
        last = store.owner(b"y")
        assert counted(last).enqueued == number + 1
        assert last.messaging.conservation.applied.received == 0
    assert [each.id for each in claim(store.owner(b"y"))] == [b"a0", b"n1", b"a2"]


def test_a_group_whose_messages_were_enqueued_elsewhere_is_not_done(store: QueueRanges) -> None:
    store.commit(Put(A, b""), made_up(b"a1", group="y"))
    store.step()
    store.deliver_requests(Prepare)
    store.deliver_answers()
    store.step()  # it is decided, and the range of the group has not heard of it
    asked = store.commit(Put(B, b""), WhenDone(Q, "y", made_up(b"n1", B)))
    store.settle()
    assert answer_of(asked)
    [found] = claim(store.owner(b"y"))
    assert counted(store.owner(B)).enqueued == 0
    store.owner(b"y").commit(Acknowledge(Q, [attempt(found)]), anchor=b"y")
    store.settle()
    [follower] = claim(store.owner(B))
    assert follower.id == b"n1"


def test_a_message_with_a_home_elsewhere_costs_its_range_one_log_entry(store: QueueRanges) -> None:
    store.settle()
    before = store.entries()
    asked = store.commit(Put(A, b""), made_up(b"a1", C))
    assert not asked.answers
    assert [now - then for now, then in zip(store.entries(), before, strict=True)] == [1, 0, 0]


@pytest.mark.parametrize("makes", [made_up, given])
@pytest.mark.parametrize("id_", [b"a1", b"n1", b"x1"])
def test_a_client_that_is_answered_finds_the_message_in_its_queue(
    store: QueueRanges, makes: Any, id_: bytes
) -> None:
    """The range of the commit, of the id and of the home may be three."""
    asked = store.commit(Put(A, b""), makes(id_, C))
    rounds = 0
    while not asked.answers:
        assert (rounds := rounds + 1) < 20
        for each in store.members:
            each.pass_time(0.01)
        store.step()
        store.deliver_requests()
        store.deliver_answers()
    assert [each.id for each in claim(store.owner(C))] == [id_]


@pytest.mark.parametrize("other", [given(b"n1", B), given(b"n1", C), made_up(b"n1", B, group="n")])
@pytest.mark.parametrize("own", [made_up(b"a1", C), given(b"a1", C)])
def test_a_commit_that_enqueues_in_all_ways_waits_for_no_time_out(
    store: QueueRanges, own: EnqueueInQueue, other: EnqueueInQueue
) -> None:
    asked = store.commit(Put(A, b""), own, other)
    for _ in range(20):
        for each in store.members:
            each.pass_time(0.01)
        store.step()
        store.deliver_requests()
        store.deliver_answers()
    assert asked.answers
    assert not store.owner(A).replica.memory.held


def test_an_answer_is_given_in_time_though_nothing_can_be_handed_over(
    store: QueueRanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service that hands over fails, or waits for a proposal of its own range."""
    monkeypatch.setattr(SendingService, "send_batches", lambda _: 60.0)
    asked = store.commit(Put(A, b""), made_up(b"a1", C))
    for seconds, is_answered in ((HELD_SECONDS / 2, False), (HELD_SECONDS, True)):
        store.owner(A).pass_time(seconds)
        store.step()
        assert bool(asked.answers) is is_answered


def test_a_commit_is_answered_though_its_message_does_not_arrive(store: QueueRanges) -> None:
    asked = store.commit(Put(A, b""), made_up(b"a1", C))
    store.step()
    for seconds, is_answered in ((HELD_SECONDS / 2, False), (HELD_SECONDS, True)):
        store.network.packets.clear()
        store.owner(A).pass_time(seconds)
        store.step()
        assert bool(asked.answers) is is_answered
    store.settle()
    assert counted(store.owner(C)).ready == 1


def test_a_commit_is_answered_when_nobody_hands_over_its_message_any_longer(
    store: QueueRanges,
) -> None:
    asked = store.commit(Put(A, b""), made_up(b"a1", C))
    assert not asked.answers
    store.take_over(1)
    assert answer_of(asked)


def test_answers_that_were_held_leave_nothing(store: QueueRanges) -> None:
    held = store.owner(A).replica.memory.held
    for number in range(20):
        store.enqueued(Put(A, b""), made_up(b"a%d" % number, C), given(b"n%d" % number, A))
    store.commit(Put(A, b""), made_up(b"a", C))
    assert (len(held._by_name), len(held._by_age)) == (1, 1)
    store.take_over(1)
    assert (len(held._by_name), len(held._by_age)) == (0, 0)


def test_many_messages_are_handed_over_together(store: QueueRanges) -> None:
    store.settle()
    before = store.entries()
    store.enqueued(Put(A, b""), *(made_up(b"a%d" % each, C) for each in range(50)))
    paid = [now - then for now, then in zip(store.entries(), before, strict=True)]
    assert counted(store.owner(C)).ready == 50
    assert max(paid) <= 2 + LANES


def test_a_message_on_its_way_is_pending(store: QueueRanges) -> None:
    store.commit(Put(A, b""), made_up(b"a1", C))
    first = store.members[0].messaging.conservation.applied
    assert (first.enqueued, first.pending, first.outgoing) == (1, 1, 1)
    store.settle()
    first = store.members[0].messaging.conservation.applied
    last = store.members[2].messaging.conservation.applied
    assert (first.pending, first.handed) == (0, 1)
    assert last.received == 1


def test_a_message_comes_once_though_batches_are_doubled_and_leaders_die(
    store: QueueRanges,
) -> None:
    store.commit(Put(A, b""), made_up(b"a1", C))
    store.owner(C).pass_time(0.1)
    store.step()
    packets = list(store.network.packets)
    store.deliver_requests()
    assert counted(store.owner(C)).enqueued == 1
    store.take_over(3)
    store.network.answers.clear()
    store.network.packets += packets
    store.take_over(1)
    for _ in range(5):
        store.pass_time(6.0)
    assert counted(store.owner(C)).enqueued == 1
    assert store.pointers() == {b"a1": C}


# --- ids


def inserted_once(store: QueueRanges, answers: list[Any]) -> None:
    """Check that one of some messages with the same id was inserted, and is there."""
    assert answers.count(None) == 1, answers
    assert store.counted()["enqueued"] == 1
    [(_, home)] = store.pointers().items()
    assert counted(store.owner(home)).ready == 1


def test_an_id_is_unique_over_ranges_whatever_the_keys_and_groups(store: QueueRanges) -> None:
    every = [
        store.commit(given(b"n1", key, group=key.decode() if number % 3 == 0 else ""))
        for number, key in enumerate([A, B, C] * 17)
    ]
    store.settle()
    inserted_once(store, [(answer_of(each).answers or [None])[0] for each in every])


def test_an_id_is_unique_though_it_is_prepared_from_other_ranges(store: QueueRanges) -> None:
    every = [
        store.commit(Put(key + b"%d" % number, b""), given(b"n1", key))
        for number, key in enumerate([A, C, B] * 5)
    ]
    store.settle()
    inserted_once(store, [(answer_of(each).answers or [None, None])[1] for each in every])


@pytest.mark.parametrize("store", [{"on_duplicate": "error"}], indirect=True)
def test_a_duplicate_in_another_range_is_an_error_if_the_queue_says_so(store: QueueRanges) -> None:
    assert store.enqueued(given(b"n1", C)) == [None]
    for anchor in (A, B):
        asked = store.commit(Put(anchor, b""), given(b"n1", A))
        store.settle()
        with pytest.raises(ConditionFailed):
            answer_of(asked)
    assert store.value(A) is None
    assert store.counted()["enqueued"] == 1


@pytest.mark.parametrize("store", [{"on_duplicate": "replace"}], indirect=True)
@pytest.mark.parametrize("anchor", [A, B, C])
def test_a_message_in_another_range_is_replaced_where_it_lies(
    store: QueueRanges, anchor: bytes
) -> None:
    store.enqueued(given(b"n1", C, payload=b"old"))
    later = given(b"n1", A, payload=b"new")
    assert store.enqueued(Put(anchor, b""), later) == [None, "replaced"]
    [found] = claim(store.owner(C))
    assert (found.payload, found.key) == (b"new", C)
    assert store.pointers() == {b"n1": C}
    assert store.counted()["enqueued"] == 1


@pytest.mark.parametrize("store", [{"on_duplicate": "replace"}], indirect=True)
def test_a_message_that_was_fired_in_another_range_is_not_replaced(store: QueueRanges) -> None:
    store.enqueued(given(b"n1", C, payload=b"old"))
    [found] = claim(store.owner(C))
    store.enqueued(given(b"n1", A, payload=b"new"))
    assert found.payload == b"old"
    assert store.counted() == {"enqueued": 1, "leased": 1, "fired": 1}


@pytest.mark.parametrize("store", [{"on_duplicate": "replace"}], indirect=True)
@pytest.mark.parametrize("group", ["b", "n2", "y"])
@pytest.mark.parametrize("id_", [b"n1", b"x1"])
def test_a_replacement_with_another_group_moves_the_message_to_that(
    store: QueueRanges, id_: bytes, group: str
) -> None:
    store.enqueued(given(id_, C, payload=b"old"))
    store.enqueued(given(id_, C, payload=b"new", group=group))
    assert store.pointers() == {id_: group.encode()}
    [found] = claim(store.owner(group.encode()))
    assert (found.payload, found.group, found.key) == (b"new", group, C)
    assert store.counted()["leased"] == 1


@pytest.mark.parametrize("store", [{"on_duplicate": "replace"}], indirect=True)
def test_a_pointer_may_come_before_its_message(store: QueueRanges) -> None:
    store.enqueued(given(b"n1", C))
    store.commit(given(b"n1", C, group="n2"))
    for _ in range(3):
        for each in store.members:
            each.pass_time(0.1)
        store.step()
        messages = list(store.network.packets)
        store.network.packets = [
            each for each in messages if not any(entry.key == b"n2" for _, entry in told(each))
        ]
        store.deliver_requests()
        store.deliver_answers()
    assert store.pointers() == {b"n1": b"n2"}
    assert counted(store.owner(B)).enqueued == 0
    asked = store.commit(given(b"n1", A, payload=b"again"))
    store.settle()
    assert answer_of(asked).answers == ["replaced"]
    for _ in range(3):
        store.pass_time(6.0)
    assert store.pointers() == {b"n1": b"n2"}
    assert counted(store.owner(B)).ready == 1
    assert store.outgoing() == 0


def told(packet: Any) -> Any:
    """Return the messages of a batch."""
    return getattr(packet.request, "messages", ())


@pytest.mark.parametrize("store", [{"on_duplicate": "replace"}], indirect=True)
def test_a_message_that_has_ended_elsewhere_is_enqueued_anew_instead_of_replaced(
    store: QueueRanges,
) -> None:
    store.enqueued(given(b"n1", C))
    store.owner(C).commit(CancelMessages(Q, [Attempt(C, "", b"n1")]), anchor=C)
    store.enqueued(given(b"n1", A, payload=b"new"))
    [found] = claim(store.owner(A))
    assert found.payload == b"new"
    assert store.pointers() == {b"n1": A}


@pytest.mark.parametrize("make", [made_up, given])
def test_an_id_is_free_again_once_its_message_was_purged_elsewhere(
    store: QueueRanges, make: Any
) -> None:
    store.enqueued(Put(A, b""), make(b"n1", C))
    last = store.owner(C)
    [found] = claim(last)
    last.commit(Acknowledge(Q, [attempt(found)]), anchor=C)
    store.settle()
    assert store.enqueued(given(b"n1", A)) == ["ignored"]
    purge(store)
    assert store.pointers() == {}
    assert store.enqueued(given(b"n1", A)) == [None]
    assert store.pointers() == {b"n1": A}
    [found] = claim(store.owner(A))
    assert found.id == b"n1"


def purge(store: QueueRanges) -> None:
    """Let the messages that were done long enough ago be purged."""
    store.pass_time(PURGE_AFTER + 1)
    for each in store.members:
        advance(each)
    store.settle()


@pytest.mark.parametrize("group", ["g", "n group"])
def test_a_follower_waits_for_the_transaction_that_takes_its_id(
    store: QueueRanges, group: str
) -> None:
    member, first = store.owner(B), store.owner(group.encode())
    store.enqueued(given(b"a1", group=group))
    store.enqueued(WhenDone(Q, group, given(b"n1", payload=b"follower")))
    before = counted(member).enqueued
    id_ = transaction_id()
    prepared = member.prepare(id_, given(b"n1", payload=b"prepared"))
    [found] = claim(first)
    first.commit(Acknowledge(Q, [attempt(found)]), anchor=group.encode())
    for _ in range(5):
        for each in store.members:
            each.pass_time(0.1)
        store.step()
        store.deliver_requests()
        store.deliver_answers()
    assert counted(member).enqueued == before
    member.resolve(id_, prepared.timestamp + SECOND)
    for _ in range(3):
        store.pass_time(1.0)
    [found] = claim(member)
    assert found.payload == b"prepared"
    assert counted(member).enqueued == before + 1


def test_the_home_of_a_message_with_a_given_id_sends_nothing_back(store: QueueRanges) -> None:
    store.enqueued(Put(A, b""), given(b"n1", C))
    assert store.owner(C).messaging.conservation.applied.enqueued == 0


def test_a_made_up_id_that_is_used_twice_leaves_a_dead_letter(store: QueueRanges) -> None:
    store.enqueued(Put(A, b""), made_up(b"a1", C))
    assert store.enqueued(Put(B, b""), made_up(b"a1", C)) == [None, None]
    assert store.owner(C).messaging.conservation.applied.dead == 1
    assert store.counted()["enqueued"] == 1


def test_a_change_that_fails_half_way_leaves_nothing_but_a_dead_letter(
    store: QueueRanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Enqueueing.place

    def fail(self: Enqueueing, ctx: Any, request: EnqueueInQueue) -> None:
        place(self, ctx, request)
        raise Invalid("it fails after it has sent a pointer")

    monkeypatch.setattr(Enqueueing, "place", fail)
    store.enqueued(Put(A, b""), made_up(b"a1", C))
    last = store.owner(C).messaging.conservation.applied
    assert (last.dead, last.enqueued, last.outgoing) == (1, 0, 0)
    assert store.pointers() == {}
    assert store.counted() == {}


def test_only_the_pointer_to_a_message_ends_with_it(store: QueueRanges) -> None:
    member = store.owner(B)
    store.enqueued(given(b"n1", C))
    end = crossing.EndPointer(Q, number_of_queue(member), A, "", b"n1")
    ctx = Evaluation(member.engine, member.range_id, 0)
    ctx.begin(member.clock.now())
    entry = Deliverable(b"n1", crossing.encode(end), None, b"", b"", is_of_queue=True)
    member.messaging.queues.take_change(ctx, entry)
    assert not ctx.writes


def number_of_queue(member: Participant) -> int:
    """Return the number of the queue."""
    number: int = member.messaging.queues._directory.known(Q).definition.number
    return number


# --- groups


@pytest.mark.parametrize("follower", [given(b"n1"), given(b"n1", C), made_up(b"n1", A)])
@pytest.mark.parametrize("anchor", [A, B, C])
def test_a_follower_comes_when_its_group_in_another_range_is_done(
    store: QueueRanges, follower: EnqueueInQueue, anchor: bytes
) -> None:
    sent = [made_up(b"a%d" % each, group="y") for each in range(3)]
    store.enqueued(Put(anchor, b""), *sent, WhenDone(Q, "y", follower))
    found = claim(store.owner(b"y"))
    assert len(found) == 3
    for each in found:
        assert b"n1" not in store.pointers()
        store.owner(b"y").commit(Acknowledge(Q, [attempt(each)]), anchor=b"y")
        store.settle()
    [last] = claim(store.owner(follower.key))
    assert last.id == b"n1"


@pytest.mark.parametrize("follower", [given(b"n1"), given(b"n1", C), made_up(b"n1", A)])
def test_a_follower_comes_at_once_if_nothing_of_its_group_is_outstanding(
    store: QueueRanges, follower: EnqueueInQueue
) -> None:
    store.enqueued(Put(A, b""), WhenDone(Q, "y", follower))
    [found] = claim(store.owner(follower.key))
    assert found.id == b"n1"


def test_a_dead_message_moves_to_its_dead_letter_queue_in_its_own_range() -> None:
    store = QueueRanges(b"m", b"w", dead_letter_queue=DEAD, max_attempts=1, ack_wait=3.0)
    store.enqueued(Put(A, b""), given(b"n1", C))
    claim(store.owner(C))
    store.pass_time(4.0)
    advance(store.owner(C))
    store.settle()
    assert list(store.pointers().values()) == [C, C]
    assert counted(store.owner(C)).moved == 1
    assert counted(store.owner(C), DEAD).ready == 1
    store.close()


# --- damage, dropped queues, schedules


def test_a_message_for_a_damaged_queue_is_a_dead_letter_that_can_be_replayed(
    store: QueueRanges,
) -> None:
    last = store.owner(C)
    last.messaging.queues.steps.set_aside(QueueDamaged(Q, "a record cannot be read"))
    store.enqueued(Put(A, b""), made_up(b"a1", C))
    applied = last.messaging.conservation.applied
    assert (applied.received, applied.dead, applied.pending) == (1, 1, 0)
    [letter] = last.result(ListDeadLetters(10))
    assert letter.record.message.key == C
    assert "cannot be read" in letter.record.reason
    after = store.take_over(3)
    after.commit(ReplayDeadLetters([letter.id]), anchor=C)
    after.ask(DeliverDue(10), urgent=False)
    for _ in range(5):
        store.pass_time(6.0)
    assert store.pointers() == {b"a1": C}
    assert after.messaging.conservation.applied.dead_letters == 0
    [found] = claim(after)
    assert found.id == b"a1"


def test_messages_and_pointers_of_a_dropped_queue_are_gone_wherever_they_were(
    store: QueueRanges,
) -> None:
    store.enqueued(Put(A, b""), made_up(b"a1", C), given(b"n1", C))
    store.commit(Put(A, b""), made_up(b"a2", C))  # it arrives later
    for each in store.members:
        drop(each)
    store.settle()
    for each in store.members:
        advance(each)
    store.settle()
    assert store.pointers() == {}
    for each in store.members:
        assert not each.messaging.queues._dropped
        assert each.messaging.conservation.applied.dead == 0


def test_a_tick_goes_by_the_range_of_its_id_and_comes_once(store: QueueRanges) -> None:
    first = store.members[0]
    store.enqueued(SetSchedule(Q, "zero", "* * * * *", payload=b"tick", group="n group"), anchor=A)
    for _ in range(3):
        for _ in range(2):
            store.pass_time(30.0)
        first.ask(AdvanceQueues(1000), urgent=False)
        store.settle()
    assert counted(store.owner(b"n")).enqueued == 3
    assert all(id_.startswith(b"zero@") for id_ in store.pointers())
    assert set(store.pointers().values()) == {b"n group"}


def test_a_change_that_cannot_be_read_is_a_dead_letter(store: QueueRanges) -> None:
    last, first = store.owner(C), store.members[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(departing, "encode", lambda _: b"not a change")
        store.commit(Put(A, b""), made_up(b"a1", C))
    store.settle()
    assert last.messaging.conservation.applied.dead == 1
    assert first.messaging.conservation.applied.pending == 0


def test_a_range_refuses_messages_for_others_that_there_is_no_room_for(
    store: QueueRanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OUTGOING_MAX", 2)
    every = [store.commit(Put(A, b""), made_up(b"a%d" % each, C)) for each in range(3)]
    with pytest.raises(OutboxFull):
        answer_of(every[2])
    prepared = store.commit(Put(B, b""), given(b"a9", C))  # its pointer and its message, too
    store.settle()
    with pytest.raises(OutboxFull):
        answer_of(prepared)
    assert store.counted()["ready"] == 2


@pytest.mark.parametrize("group", ["", "group"])
def test_a_range_refuses_pointers_for_others_that_there_is_no_room_for(
    store: QueueRanges, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    monkeypatch.setattr(limits, "OUTGOING_MAX", 2)
    every = [store.commit(Put(A, b""), made_up(b"x%d" % each, A, group=group)) for each in range(3)]
    with pytest.raises(OutboxFull):
        answer_of(every[2])
    store.settle()
    assert store.counted()["ready"] == 2


def test_a_prepared_message_is_sent_though_the_room_is_used_up_meanwhile(
    store: QueueRanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.members[0]
    id_ = transaction_id()
    prepared = first.prepare(id_, given(b"a9", C))
    monkeypatch.setattr(limits, "OUTGOING_MAX", 0)
    first.resolve(id_, prepared.timestamp + SECOND)
    store.settle()
    assert counted(store.owner(C)).ready == 1
