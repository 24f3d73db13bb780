"""A commit over several ranges happens in all of them or in none, whoever dies when."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from postroom.errors import (
    CommitUnknown,
    ConditionFailed,
    Invalid,
    TransactionConflict,
    TransactionTooLarge,
    Unavailable,
)
from postroom.kv import keys
from postroom.messaging.requests import EnqueueMessage, Peek
from postroom.raft.proposals import ProposalOutcome
from postroom.ranges.calls import NotLeaseholder
from postroom.ranges.descriptor import RangeDescriptor, descriptor_key, encode_descriptor
from postroom.ranges.requests import (
    Accounting,
    CollectGarbage,
    ConditionalPut,
    DeleteRange,
    Get,
    Increment,
    Lock,
    Put,
)
from postroom.ranges.transactions.requests import Prepare, Push, Resolve
from tests.ranges.transactions.participant import SECOND, answer_of, transaction_id
from tests.ranges.transactions.several import Several

A, B, C = b"a", b"n", b"x"
"""Keys of the three ranges."""


@pytest.fixture
def store() -> Several:
    return Several(b"m", b"w")


def test_a_commit_writes_in_all_ranges_at_one_timestamp(store: Several) -> None:
    asked = store.commit(Put(A, b"1"), Put(B, b"2"), Put(C, b"3"))
    store.settle()
    at = answer_of(asked).timestamp
    for key, value in ((A, b"1"), (B, b"2"), (C, b"3")):
        assert store.value(key) == value
        member = store.owner(key)
        assert member.value(key, at) == value
        assert member.value(key, at - 1) is None
    assert store.records() == 0


def test_a_service_is_woken_once_for_all_that_comes_before_its_step(store: Several) -> None:
    first = store.members[0]
    for each in (b"1", b"2", b"3"):
        store.commit(Put(A + each, b""), Put(B + each, b""))
    assert first.notice.number == 1
    first.service.step()
    store.commit(Put(A + b"4", b""), Put(B + b"4", b""))
    assert first.notice.number == 2


def test_answers_come_in_the_order_of_the_writes(store: Several) -> None:
    store.settle()
    for key in (A, b"b", B, C):
        store.commit(Put(key, b""))
    store.settle()
    asked = store.commit(  # with the two counters six keys are there, and four before
        Increment(b"n1", 1), Increment(b"a1", 2), DeleteRange(b"", b"x1"), Increment(b"n1", 3)
    )
    store.settle()
    assert answer_of(asked).answers == [1, 2, 6, 3]
    again = store.send(asked.request)
    store.settle()
    assert answer_of(again) == answer_of(asked)


def test_messages_are_sent_by_the_range_of_the_anchor(store: Several) -> None:
    asked = store.commit(Put(A, b"1"), Put(B, b"2"), EnqueueMessage(b"a2", b"message"))
    store.settle()
    assert answer_of(asked)
    assert len(store.members[0].result(Peek(b"a2", 10)).messages) == 1
    assert store.members[0].messaging.conservation.applied.enqueued == 1
    assert store.members[1].messaging.conservation.applied.enqueued == 0


def test_the_anchor_pays_one_log_entry_and_each_other_range_two(store: Several) -> None:
    store.commit(Put(A, b"0"))
    store.commit(Put(B, b"0"))
    store.commit(Put(C, b"0"))
    store.settle()
    before = store.entries()
    read = store.members[2].clock.now()
    asked = store.commit(Put(A, b"1"), Put(B, b"2"), reads=[C], read_timestamp=read)
    store.settle()
    assert answer_of(asked)
    paid = [after - earlier for after, earlier in zip(store.entries(), before, strict=True)]
    assert paid == [1, 2, 2]


def test_the_lists_of_many_commits_are_forgotten_in_one_log_entry(store: Several) -> None:
    for number in range(20):
        store.commit(Put(b"a%d" % number, b""), Put(b"n%d" % number, b""))
    store.settle()
    first = store.members[0]
    prefix = keys.unresolved_prefix(1)
    lists = [*first.engine.iterate(prefix, keys.after_prefix(prefix))]
    assert len(lists) == 20
    before = store.entries()[0]
    store.pass_time(1.0)
    assert store.entries()[0] == before + 1
    assert not [*first.engine.iterate(prefix, keys.after_prefix(prefix))]
    assert len(first.service.resolver) == 0


def test_a_commit_record_stays_until_all_ranges_have_heard(store: Several) -> None:
    asked = store.commit(Put(A, b"1"), Put(B, b"2"))
    store.step()
    store.deliver_requests(Prepare)
    store.deliver_answers()
    store.step()
    first = store.members[0]
    record = keys.transaction_key(A, asked.request.transaction_id)
    assert answer_of(asked)
    store.network.packets.clear()  # range 2 does not hear of it
    first.pass_time(100.0)
    later = first.clock.now() + 1000 * SECOND
    first.ask(CollectGarbage(later, 1000), urgent=False)
    assert first.engine.get(record) is not None
    store.pass_time(3.0)
    assert store.records() == 0
    store.pass_time(1.0)
    first.ask(CollectGarbage(later + 1000 * SECOND, 1000), urgent=False)
    assert first.engine.get(record) is None


# --- refusals


def refused_with(store: Several, error: type[Exception], *writes: Any, **fields: Any) -> None:
    """Check that a commit is refused and leaves nothing."""
    asked = store.commit(*writes, **fields)
    store.settle()
    with pytest.raises(error):
        answer_of(asked)
    store.settle()
    assert store.records() == 0
    assert store.value(A) is None
    assert store.value(B) is None


def test_a_condition_that_fails_in_any_range_refuses_all(store: Several) -> None:
    refused_with(store, ConditionFailed, Put(A, b""), ConditionalPut(B, b"", b"there"))
    refused_with(store, ConditionFailed, ConditionalPut(A, b"", b"there"), Put(B, b""))


def test_a_read_that_has_changed_in_any_range_refuses_all(store: Several) -> None:
    read = max(member.clock.now() for member in store.members)
    for member in store.members:
        member.clock.pass_over(read)
    store.commit(Put(C, b"changed"))
    store.commit(Put(b"a9", b"changed"))
    store.settle()
    for changed in (C, b"a9"):
        refused_with(
            store, TransactionConflict, Put(A, b""), Put(B, b""), reads=[changed],
            read_timestamp=read,
        )  # fmt: skip
        refused_with(
            store, TransactionConflict, Put(A, b""), Put(B, b""), spans=[(b"", None)],
            read_timestamp=read,
        )  # fmt: skip


def test_write_skew_over_two_ranges_is_refused(store: Several) -> None:
    read = max(member.clock.now() for member in store.members)
    for member in store.members:
        member.clock.pass_over(read)
    one = store.commit(Put(A, b"1"), reads=[B], read_timestamp=read)
    other = store.commit(Put(B, b"1"), reads=[A], read_timestamp=read)
    store.settle()
    store.pass_time(3.0)
    outcomes = [asked.answers[0][1] for asked in (one, other)]
    assert sum(error is None for error in outcomes) <= 1
    assert store.records() == 0


def test_a_part_of_nine_mebibytes_is_refused(store: Several) -> None:
    large = [Put(B + b"%d" % number, bytes(1024 * 1024)) for number in range(9)]
    refused_with(store, TransactionTooLarge, Put(A, b""), *large)


def test_writes_in_ranges_that_the_node_does_not_know_are_not_too_large_together(
    store: Several,
) -> None:
    store.network.unknown = {2, 3}
    large = [Put(key + b"%d" % number, bytes(1024 * 1024)) for number in range(5) for key in (B, C)]
    asked = store.commit(Put(A, b""), *large)
    store.settle()
    store.pass_time(3.0)
    with pytest.raises(Unavailable, match="try again"):
        answer_of(asked)


def test_a_write_that_lies_in_several_ranges_is_refused() -> None:
    store = Several(b"n/")
    refused_with(store, Invalid, Put(A, b""), Accounting(b"n/b", {"metric": 1}))


# --- the client dies


def test_a_commit_that_is_sent_again_happens_once(store: Several) -> None:
    asked = store.commit(Increment(A), Increment(B))
    during = store.send(asked.request)
    store.settle()
    after = store.send(asked.request)
    store.settle()
    store.take_over(1)
    under_the_next_lease = store.send(asked.request)
    store.settle()
    for again in (during, after, under_the_next_lease):
        assert answer_of(again) == answer_of(asked)
    assert int.from_bytes(store.value(B) or b"", "big") == 1


# --- the coordinator dies


def test_a_coordinator_that_dies_before_it_asks_leaves_nothing(store: Several) -> None:
    asked = store.commit(Put(A, b"1"), Put(B, b"2"))
    store.take_over(1)
    with pytest.raises(NotLeaseholder):
        answer_of(asked)
    store.settle()
    assert store.records() == 0


def test_records_of_a_dead_coordinator_are_found_dead(store: Several) -> None:
    asked = store.commit(Put(A, b"1"), Put(B, b"2"))
    store.step()
    store.deliver_requests(Prepare)
    store.take_over(1)
    with pytest.raises(NotLeaseholder):
        answer_of(asked)
    assert store.records() == 1
    store.pass_time(2.5)
    assert store.records() == 0
    assert store.value(B) is None


def test_a_reader_finds_a_dead_transaction_at_once(store: Several) -> None:
    store.commit(Put(A, b"1"), Put(B, b"2"))
    store.step()
    store.deliver_requests(Prepare)
    store.take_over(1)
    store.network.answers.clear()
    store.members[1].service.pusher.restart()
    assert store.value(B) is None
    assert store.records() == 0


def test_an_old_coordinator_does_not_commit_under_the_next_lease(store: Several) -> None:
    asked = store.commit(Put(A, b"1"), Put(B, b"2"))
    store.step()
    store.deliver_requests(Prepare)
    old = store.members[0]
    old.group.holds = True
    store.deliver_answers()
    store.step()  # the COMMIT record is proposed, and nobody else has it
    assert old.group.proposed
    store.take_over(1)
    command = msgspec.msgpack.encode(old.group.proposed[0][0].command)
    old.end(ProposalOutcome.UNKNOWN)
    with pytest.raises(CommitUnknown):
        answer_of(asked)
    store.members[0].group._apply(command, None)  # it has come in late: it is void
    store.pass_time(3.0)
    assert store.records() == 0
    assert store.value(A) is None
    assert store.value(B) is None


def test_a_commit_whose_coordinator_dies_afterwards_is_resolved(store: Several) -> None:
    asked = store.commit(Put(A, b"1"), Put(B, b"2"))
    store.step()
    store.deliver_requests(Prepare)
    store.deliver_answers()
    store.step()
    store.network.packets.clear()
    assert answer_of(asked)
    assert store.records() == 1
    store.take_over(1)
    store.settle()
    assert store.records() == 0
    assert store.value(B) == b"2"


def test_a_reader_that_meets_a_commit_resolves_it(store: Several) -> None:
    asked = store.commit(Put(A, b"1"), Put(B, b"2"))
    store.step()
    store.deliver_requests(Prepare)
    store.deliver_answers()
    store.step()
    store.network.packets.clear()
    assert answer_of(asked)
    assert store.value(B) == b"2"
    assert store.records() == 0


# --- a participant dies, or the network


def test_a_participant_that_dies_keeps_what_it_has_prepared(store: Several) -> None:
    asked = store.commit(Put(A, b"1"), Put(B, b"2"))
    store.step()
    store.deliver_requests(Prepare)
    store.deliver_answers()
    store.step()
    assert answer_of(asked)
    store.network.packets.clear()
    store.take_over(2, ahead_seconds=-7200.0)
    assert store.records() == 1
    store.pass_time(2.5)
    assert store.value(B) == b"2"
    assert store.records() == 0


def test_a_participant_that_dies_before_it_has_answered_is_asked_again(store: Several) -> None:
    asked = store.commit(Put(A, b"1"), Put(B, b"2"))
    store.step()
    store.network.packets.clear()
    store.pass_time(0.6)
    assert answer_of(asked)
    assert store.value(B) == b"2"


def test_a_run_that_takes_too_long_is_over(store: Several) -> None:
    asked = store.commit(Put(A, b"1"), Put(B, b"2"))
    store.step()
    late = [packet for packet in store.network.packets if packet.recipient == 2]
    store.network.packets.clear()
    for member in store.members:
        member.pass_time(2.5)
    store.step()
    with pytest.raises(Unavailable, match="nothing was changed"):
        answer_of(asked)
    store.network.packets = late
    store.settle()
    assert store.records() == 1
    store.pass_time(2.5)
    assert store.records() == 0
    assert store.value(A) is None


def test_a_run_that_is_over_before_its_evaluation_has_ended_does_not_commit(
    store: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = prepared_everywhere(store)
    first = store.members[0]
    writes, coordinator = first.replica.registry.writes, first.service.coordinator
    put = writes[Put]

    def put_too_late(ctx: Any, write: Put) -> Any:
        for run in list(coordinator.runs.values()):
            coordinator.wound(run)
        return put(ctx, write)

    monkeypatch.setitem(writes, Put, put_too_late)
    store.settle()
    with pytest.raises(TransactionConflict):
        answer_of(asked)
    assert store.value(A) is None
    assert store.value(B) is None
    assert store.records() == 0


def test_doubled_requests_and_answers_change_nothing(store: Several) -> None:
    asked = store.commit(Increment(A), Increment(B), Increment(C))
    kept = []
    for _ in range(6):
        store.step()
        network = store.network
        kept += network.packets
        network.packets = network.packets * 2
        store.deliver_requests()
        network.answers = network.answers * 2
        store.deliver_answers()
    assert answer_of(asked)
    store.network.packets = kept
    store.settle()
    store.pass_time(3.0)
    assert store.records() == 0
    assert [int.from_bytes(store.value(key) or b"", "big") for key in (A, B, C)] == [1, 1, 1]


def test_intents_of_an_anchor_that_cannot_be_asked_block_only_their_keys(store: Several) -> None:
    store.commit(Put(A, b"1"), Put(B, b"2"))
    store.step()
    store.deliver_requests(Prepare)
    second = store.members[1]
    blocked = second.ask(second.transaction(Put(B, b"other"), anchor=B))
    for _ in range(10):
        store.network.packets.clear()
        store.network.answers.clear()
        for member in store.members[1:]:
            member.pass_time(1.5)
            member.service.step()
            member.settle()
    with pytest.raises(TransactionConflict, match="did not end within"):
        answer_of(blocked)
    assert second.commit(Put(b"n9", b"free"), anchor=B)
    assert second.intents.waiting() == 0


@pytest.mark.parametrize("when", ["before the run", "between the rounds"])
def test_a_range_that_has_split_meanwhile_is_told_as_a_reason_to_try_again(
    store: Several, when: str
) -> None:
    """A client need not know that the own part lies in two ranges now."""

    def split() -> None:
        replica = store.members[0].replica
        later = replica.bounds.descriptor.generation + 1
        stored = encode_descriptor(RangeDescriptor(1, b"", b"a", later))
        replica.registry.observers[descriptor_key(1)](stored)

    asked = store.commit(Put(A, b"1"), Put(B, b"2"))
    if when == "between the rounds":
        store.step()
        store.deliver_requests(Prepare)
    split()
    store.settle()
    (_, error) = asked.answers[0]
    assert type(error) is Unavailable
    assert "split or moved" in str(error)
    assert store.records() == 0


# --- pushes


def prepared_everywhere(store: Several, **fields: Any) -> Any:
    """Return a commit of which all other ranges have prepared their parts."""
    asked = store.commit(Put(A, b"1"), Put(B, b"2"), **fields)
    store.step()
    store.deliver_requests(Prepare)
    return asked


def test_a_pending_commit_lets_readers_go_on_and_commits_above_them(store: Several) -> None:
    asked = prepared_everywhere(store)
    answers, store.network.answers = store.network.answers, []
    second = store.members[1]
    second.clock.pass_over(second.clock.now() + 3600 * SECOND)
    reader = second.ask(Get(B))
    store.settle()
    seen = answer_of(reader)
    assert seen.value is None
    store.network.answers = answers
    store.settle()
    assert answer_of(asked).timestamp > seen.timestamp
    assert second.value(B, seen.timestamp) is None


def test_the_answer_to_an_earlier_question_lets_no_later_reader_go_on(store: Several) -> None:
    asked = prepared_everywhere(store)
    answers, store.network.answers = store.network.answers, []
    second = store.members[1]
    earlier = second.ask(Get(B))
    store.step()
    store.deliver_requests(Push)
    second.clock.pass_over(second.clock.now() + 3600 * SECOND)
    later = second.ask(Get(B))
    store.step()
    store.deliver_answers()
    store.step()
    assert answer_of(earlier).value is None
    assert not later.answers, "the commit may be between the two"
    store.network.answers = answers
    store.settle()
    seen = answer_of(later)
    assert (seen.value == b"2") == (answer_of(asked).timestamp <= seen.timestamp)


def test_an_older_writer_wounds_and_a_younger_one_waits(store: Several) -> None:
    began = store.members[0].clock.reading()
    asked = prepared_everywhere(store, began=began)
    answers, store.network.answers = store.network.answers, []
    second = store.members[1]
    younger = second.ask(second.transaction(Put(B, b"younger"), anchor=B, began=began + 1))
    store.settle()
    assert not younger.answers
    assert not asked.answers
    older = second.ask(second.transaction(Put(B, b"older"), anchor=B, began=began - 1))
    store.settle()
    with pytest.raises(TransactionConflict, match="an older transaction waits"):
        answer_of(asked)
    assert answer_of(older)
    assert answer_of(younger)
    store.network.answers = answers
    store.settle()
    assert store.value(A) is None
    assert store.records() == 0


def test_transactions_that_wait_in_a_circle_of_three_ranges_have_an_end(store: Several) -> None:
    circle = [
        store.commit(Put(A, b"1"), Put(B, b"1")),
        store.commit(Put(B, b"2"), Put(C, b"2")),
        store.commit(Put(C, b"3"), Put(A, b"3")),
    ]
    store.step()
    store.deliver_requests(Prepare)
    for _ in range(40):
        store.pass_time(0.05)
    assert all(asked.answers for asked in circle)
    assert any(asked.answers[0][1] is None for asked in circle)
    assert store.records() == 0
    for member in store.members:
        assert member.intents.waiting() == 0
        assert not member.service.coordinator.runs


def test_a_commit_that_is_prepared_elsewhere_does_not_wait_for_a_lock_at_its_anchor(
    store: Several,
) -> None:
    """The holder of the lock may be the younger one, and wait for what is prepared."""
    first, second, _ = store.members
    older = first.clock.reading()
    holder, younger = transaction_id(), first.clock.now()
    locks = [Lock([each], [], holder, 60.0, younger) for each in (A, B)]
    first.result(locks[0])
    asked = store.commit(Put(A, b"1"), Put(B, b"1"), began=older)
    store.step()
    store.deliver_requests()
    waiting = second.ask(locks[1])
    assert not waiting.answers
    store.settle()
    with pytest.raises(TransactionConflict, match="another transaction has locked b'a'") as caught:
        answer_of(asked)
    assert caught.value.keys == (A,)
    assert waiting.answers == [(None, None)]
    assert store.records() == 0


def test_a_coordinator_that_hangs_blocks_nobody_for_more_than_three_seconds(
    store: Several,
) -> None:
    asked = prepared_everywhere(store)
    store.network.answers.clear()
    second = store.members[1]
    writer = second.ask(second.transaction(Put(B, b"other"), anchor=B))
    for _ in range(30):  # the first range answers pushes, but its coordinator takes no step
        for member in store.members:
            member.pass_time(0.1)
        for member in store.members[1:]:
            member.service.step()
            member.settle()
        store.deliver_requests()
        store.deliver_answers()
    assert answer_of(writer)
    store.settle()
    with pytest.raises(TransactionConflict):
        answer_of(asked)


def test_a_push_waits_for_a_commit_that_is_under_way(store: Several) -> None:
    asked = prepared_everywhere(store)
    first, second = store.members[:2]
    first.group.holds = True
    store.deliver_answers()
    store.step()
    assert first.group.proposed
    reader = second.ask(Get(B))
    store.step()
    store.deliver_requests(Push)
    store.deliver_answers()
    store.step()
    assert not reader.answers
    first.group.holds = False
    first.end(ProposalOutcome.APPLIED)
    store.network.packets = [
        packet for packet in store.network.packets if type(packet.request) is not Resolve
    ]
    store.deliver_answers()
    store.step()
    assert answer_of(reader).value == b"2"
    assert answer_of(asked)


def test_a_run_that_waits_for_an_intent_at_its_anchor_can_be_wounded(store: Several) -> None:
    first = store.members[0]
    blocker = transaction_id()
    first.prepare(blocker, Put(A, b"blocked"), anchor=C)  # its anchor knows nothing of it
    asked = prepared_everywhere(store)
    store.deliver_answers()
    store.step()
    store.network.packets.clear()
    assert not asked.answers, "the second round waits"
    second = store.members[1]
    older = second.ask(
        second.transaction(Put(B, b"older"), anchor=B, began=asked.request.began - 1)
    )
    second.service.step()
    store.deliver_requests(Push)
    store.deliver_answers()
    second.service.step()
    second.settle()
    with pytest.raises(TransactionConflict):
        answer_of(asked)
    assert older.answers
    store.pass_time(3.0)
    assert store.value(A) is None
    assert not first.replica.usual_parts.committer.second_rounds
    assert store.records() == 0


# --- clocks


def test_clocks_that_are_hours_apart_do_not_matter() -> None:
    store = Several(b"m", b"w", ahead_seconds=(0.0, 7200.0, -7200.0))
    for number in range(3):
        asked = store.commit(Put(C, b"%d" % number), Put(A, b"%d" % number), Put(B, b"x"))
        store.settle()
        at = answer_of(asked).timestamp
        for member in store.members:
            assert member.clock.last() >= at
            assert member.replica.lease.expiration > at
    assert store.value(A) == b"2"
    assert store.value(C) == b"2"


def test_a_clock_that_stands_does_not_matter(store: Several) -> None:
    store.members[0].stands = store.members[2].stands = True
    for number in range(3):
        store.pass_time(1.0)
        asked = store.commit(Put(A, b"%d" % number), Put(C, b"%d" % number))
        store.settle()
        assert answer_of(asked)
    assert store.value(C) == b"2"
