"""A participant keeps others away from what it has prepared until that is resolved."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from postroom.errors import (
    ConditionFailed,
    Invalid,
    TransactionConflict,
    TransactionTooLarge,
    Unavailable,
    WrongType,
)
from postroom.kv.engine import EngineFailed
from postroom.limits import PREPARED_KEPT_BYTES_MAX
from postroom.messaging.requests import (
    AwaitQuiet,
    BuryMessages,
    CheckInbox,
    DeliverDue,
    EnqueueMessage,
    EnqueueUpdate,
    ExecuteDue,
    ListDeadLetters,
    ListScheduled,
    NoteAttempts,
    Peek,
    PostponeMessages,
    ReadCounters,
    ReapMessages,
)
from postroom.raft.proposals import ProposalOutcome
from postroom.ranges.bounds import WrongRange
from postroom.ranges.calls import NotLeaseholder
from postroom.ranges.requests import (
    ConditionalPut,
    Delete,
    DeleteRange,
    Get,
    GetForUpdate,
    GetMany,
    Increment,
    Put,
    Scan,
    ScanChanges,
)
from postroom.ranges.transactions import prepared
from postroom.ranges.transactions.requests import Ballot, Prepared, Refresh
from tests.messaging.one_range import Asked
from tests.ranges.transactions.participant import SECOND, Participant, answer_of, transaction_id

LATER = Ballot(1, 1, 2)
OTHER_WRITES: list[Any] = [
    Put(b"k", b"other"),
    Delete(b"k"),
    Increment(b"k"),
    ConditionalPut(b"k", b"other", None),
    DeleteRange(b"a", b"z"),
    DeleteRange(b"k", b"k\x00"),
]


@pytest.fixture
def store() -> Participant:
    return Participant()


def waits(asked: Asked) -> bool:
    return not asked.answers


# --- effects of a prepared record


def test_a_prepared_write_takes_effect_at_the_timestamp_of_its_commit(store: Participant) -> None:
    id_ = transaction_id()
    store.commit(Put(b"k", b"old"))
    p = store.prepare(id_, Put(b"k", b"new")).timestamp
    assert store.value(b"k", p - 1) == b"old"
    store.resolve(id_, p + SECOND)
    assert store.value(b"k") == b"new"
    assert store.value(b"k", p + SECOND) == b"new"
    assert store.value(b"k", p + SECOND - 1) == b"old"
    assert store.records() == 0
    assert not store.intents


@pytest.mark.parametrize("is_taken_over", [False, True])
@pytest.mark.parametrize("size", [10, 2 * PREPARED_KEPT_BYTES_MAX])
def test_only_small_writes_stay_in_memory_and_all_take_effect(
    store: Participant, size: int, is_taken_over: bool
) -> None:
    id_, value = transaction_id(), b"v" * size
    at = store.prepare(id_, Put(b"k", value), Increment(b"n")).timestamp
    if is_taken_over:
        store = store.taken_over()
    (intent,) = store.intents.by_transaction.values()
    is_kept = intent.writes is not None
    assert is_kept == (size < PREPARED_KEPT_BYTES_MAX and not is_taken_over)
    store.resolve(id_, at)
    assert store.value(b"k", at) == value
    assert store.value(b"n", at) == (1).to_bytes(8, "big")
    assert store.records() == 0


def test_a_dead_transaction_leaves_nothing(store: Participant) -> None:
    id_ = transaction_id()
    store.commit(Put(b"k", b"old"))
    before = dict(store.engine.iterate(b"\x04", b"\x07"))
    store.prepare(id_, Put(b"k", b"new"), Increment(b"n"))
    assert dict(store.engine.iterate(b"\x04", b"\x07")) == before, "nothing is among the data"
    store.resolve(id_, 0)
    assert store.value(b"k") == b"old"
    assert dict(store.engine.iterate(b"\x04", b"\x07")) == before
    assert store.records() == 0


def test_a_prepare_answers_what_its_writes_will_answer(store: Participant) -> None:
    id_ = transaction_id()
    store.commit(Put(b"k", b"v"), Put(b"l", b"v"))
    prepared_ = store.prepare(id_, Increment(b"n", 5), Increment(b"n", 2), DeleteRange(b"k", b"m"))
    assert prepared_.answers == [5, 7, 2]
    store.resolve(id_, prepared_.timestamp)
    assert int.from_bytes(store.value(b"n") or b"", "big") == 7
    assert store.value(b"k") is None


@pytest.mark.parametrize("write", OTHER_WRITES, ids=repr)
def test_a_writer_waits_for_what_another_transaction_will_write(
    store: Participant, write: Any
) -> None:
    id_ = transaction_id()
    p = store.prepare(id_, Put(b"k", b"new")).timestamp
    asked = store.ask(store.transaction(write))
    assert waits(asked)
    store.resolve(id_, p)
    [(_, error)] = asked.answers
    assert error is None or isinstance(error, ConditionFailed | WrongType), "it sees what is new"


@pytest.mark.parametrize("write", OTHER_WRITES, ids=repr)
def test_a_writer_waits_for_what_another_transaction_has_read(
    store: Participant, write: Any
) -> None:
    read = store.clock.now()
    for fields in ({"reads": [b"k"]}, {"spans": [(b"j", b"l")]}):
        id_ = transaction_id()
        p = store.prepare(id_, read_timestamp=read, **fields).timestamp
        asked = store.ask(store.transaction(write))
        assert waits(asked)
        store.resolve(id_, p)
        assert asked.answers
        read = store.clock.now()
        store.commit(Delete(b"k"))
        read = store.clock.now()


def test_two_transactions_may_read_a_key_at_once(store: Participant) -> None:
    read = store.clock.now()
    store.prepare(transaction_id(), read_timestamp=read, reads=[b"k"])
    store.prepare(transaction_id(), read_timestamp=read, reads=[b"k"])
    assert len(store.intents) == 2
    assert store.value(b"k") is None, "readers need not wait for those that have only read"


def test_a_commit_waits_for_a_write_of_what_it_has_read(store: Participant) -> None:
    id_, read = transaction_id(), store.clock.now()
    p = store.prepare(id_, Put(b"k", b"new")).timestamp
    by_key = store.ask(store.transaction(Put(b"x", b""), reads=[b"k"], read_timestamp=read))
    by_span = store.ask(
        store.transaction(Put(b"y", b""), spans=[(b"a", None)], read_timestamp=read)
    )
    assert waits(by_key)
    assert waits(by_span)
    store.resolve(id_, p)
    for asked in (by_key, by_span):
        with pytest.raises(TransactionConflict):
            answer_of(asked)


def test_a_prepare_waits_for_another_transaction(store: Participant) -> None:
    id_, read = transaction_id(), store.clock.now()
    p = store.prepare(id_, Put(b"k", b"new")).timestamp
    writer = store.ask(store.preparation(transaction_id(), Put(b"k", b"other")))
    reader = store.ask(store.preparation(transaction_id(), reads=[b"k"], read_timestamp=read))
    assert waits(writer)
    assert waits(reader)
    store.resolve(id_, p)
    assert answer_of(writer).timestamp > p
    assert waits(reader), "for the second writer"
    store.resolve(writer.request.transaction_id, 0)
    with pytest.raises(TransactionConflict):
        answer_of(reader)


@pytest.mark.parametrize(
    "read",
    [
        Get(b"k"), GetMany([b"a", b"k"]), Scan(b"a", b"z", 0, 10, 1000),
        GetForUpdate(b"k", 0, b"another client!!", 60.0),
    ],
    ids=lambda read: type(read).__name__,
)  # fmt: skip
def test_a_reader_waits_until_it_is_known_what_has_committed(store: Participant, read: Any) -> None:
    id_ = transaction_id()
    p = store.prepare(id_, Put(b"k", b"new")).timestamp
    asked = store.ask(read)
    assert waits(asked)
    assert store.replica.try_get(b"k") is None
    store.resolve(id_, p)
    assert b"new" in repr(answer_of(asked)).encode()


def test_a_reader_below_an_intent_does_not_wait(store: Participant) -> None:
    before = store.commit(Put(b"k", b"old")).timestamp
    store.prepare(transaction_id(), Put(b"k", b"new"))
    assert store.value(b"k", before) == b"old"
    assert store.value(b"other") is None


def test_a_reader_goes_on_when_the_anchor_will_commit_above_it(store: Participant) -> None:
    id_ = transaction_id()
    p = store.prepare(id_, Put(b"k", b"new")).timestamp
    asked = store.ask(Get(b"k"))
    locks = store.ask(GetForUpdate(b"k", 0, b"another client!!", 60.0))
    intent = store.intents.by_transaction[id_]
    read_at = min(met.at for met in intent.waiting.values())
    assert read_at > p, "it reads at the time of its arrival"
    store.intents.raised(intent, read_at)
    assert waits(asked), "a commit at the very timestamp would be seen"
    store.intents.raised(intent, read_at + 1)
    assert answer_of(asked).value is None
    assert answer_of(asked).timestamp == read_at
    assert waits(locks), "a newest value that is to be written must be known"
    store.resolve(id_, read_at + 1)
    assert store.value(b"k", read_at) is None
    assert answer_of(locks).value == b"new"


LISTS: list[Any] = [
    ReadCounters(), ListDeadLetters(10), ListScheduled(b"", None, 10), AwaitQuiet(),
]  # fmt: skip


@pytest.mark.parametrize("read", LISTS, ids=lambda read: type(read).__name__)
def test_a_list_of_a_range_waits_for_what_was_prepared_before_it_came(
    store: Participant, read: Any
) -> None:
    first, second, later = (transaction_id() for _ in range(3))
    p = store.prepare(first, Put(b"k", b"new")).timestamp
    store.prepare(second, Put(b"l", b"new"))
    asked = store.ask(read)
    store.prepare(later, Put(b"m", b"new"))
    store.resolve(first, p)
    assert waits(asked), "the second one may have committed as well"
    store.resolve(second, 0)
    assert asked.answers, "it does not wait for one that came later"


def test_a_list_tells_what_a_transaction_has_buried_and_postponed(store: Participant) -> None:
    store.commit(EnqueueMessage(b"k", b"one"), EnqueueMessage(b"k", b"two"))
    [(one, _), (two, _)] = store.result(Peek(b"k", 10)).messages
    id_ = transaction_id()
    writes = BuryMessages(b"k", [(one, 0)]), PostponeMessages(b"k", [(two, 0)], seconds=5.0)
    p = store.prepare(id_, *writes).timestamp
    counters, letters, scheduled, quiet = [store.ask(each) for each in LISTS]
    store.resolve(id_, p)
    assert (answer_of(counters).dead, answer_of(counters).pending) == (1, 1)
    assert len(answer_of(letters)) == len(answer_of(scheduled).entries) == 1
    assert quiet.answers


def test_a_list_waits_until_the_end_of_a_transaction_is_applied() -> None:
    store, id_ = Participant(end=b"z"), transaction_id()
    p = store.prepare(id_, Put(b"k", b"new")).timestamp
    store.group.holds = True
    resolved = store.ask(store.resolution(id_, p))
    asked = store.ask(ReadCounters())
    assert not store.intents.by_transaction
    assert waits(asked)
    store.end(ProposalOutcome.APPLIED)
    store.group.holds = False
    assert resolved.answers
    assert asked.answers


# --- while a proposal is under way


def test_a_reader_waits_for_a_prepare_that_is_under_way(store: Participant) -> None:
    store.group.holds = True
    id_ = transaction_id()
    preparing = store.ask(store.preparation(id_, Put(b"k", b"new")))
    asked = store.ask(Get(b"k"))
    other = store.ask(store.transaction(Put(b"k", b"other")))
    assert waits(asked)
    assert store.replica.try_get(b"k") is None
    store.end(ProposalOutcome.APPLIED)
    store.group.holds = False
    assert waits(asked)
    assert waits(other)
    store.resolve(id_, answer_of(preparing).timestamp)
    assert answer_of(other)
    assert answer_of(asked).value == b"other", "that was written in the same proposal"


def test_requests_of_one_proposal_see_each_others_intents(store: Participant) -> None:
    store.group.holds = True
    store.ask(store.transaction(Put(b"x", b"")))
    id_ = transaction_id()
    first = store.ask(store.preparation(id_, Put(b"k", b"new")))
    second = store.ask(store.transaction(Put(b"k", b"other")))
    ended = store.ask(store.resolution(id_, store.clock.now() + SECOND))
    third = store.ask(store.transaction(Put(b"k", b"last")))
    store.group.holds = False
    store.end(ProposalOutcome.APPLIED)
    assert answer_of(first)
    assert answer_of(ended) is None
    assert answer_of(third)
    assert answer_of(second)
    assert not store.intents
    assert store.intents.waiting() == 0


def test_an_evaluation_of_which_no_proposal_comes_leaves_no_intent(
    store: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting_for = transaction_id()
    p = store.prepare(waiting_for, Put(b"w", b"")).timestamp
    asked = store.ask(Get(b"w"))

    def fail(_: object) -> None:
        raise EngineFailed("a test")

    monkeypatch.setattr(store.replica.proposer, "_finish", fail)
    failed = store.ask(store.preparation(transaction_id(), Put(b"k", b"new")))
    resolved = store.ask(store.resolution(waiting_for, p))
    assert isinstance(failed.answers[0][1], EngineFailed)
    assert isinstance(resolved.answers[0][1], EngineFailed)
    monkeypatch.undo()
    assert list(store.intents.by_transaction) == [waiting_for]
    assert waits(asked)
    assert store.commit(Put(b"k", b"other"))
    store.resolve(waiting_for, p)
    assert answer_of(asked).value == b""


# --- the order of those that have waited


def waiting_preparations(store: Participant, *ages: int) -> list[Asked]:
    """Let a ``Prepare`` wait for each of some ages; the smallest age is that of the oldest."""
    began = store.clock.reading()
    requests = [
        store.preparation(transaction_id(), Put(b"k", b"v"), began=began + age) for age in ages
    ]
    return [store.ask(each) for each in requests]


def test_the_oldest_of_those_that_wait_is_prepared_first(store: Participant) -> None:
    id_ = transaction_id()
    store.prepare(id_, Put(b"k", b"new"))
    third, first, fourth, second = waiting_preparations(store, 2, 0, 3, 1)
    others = [first, second, third, fourth]
    while others:
        store.resolve(id_, 0)
        prepared_ = others.pop(0)
        assert answer_of(prepared_)
        assert all(waits(each) for each in others)
        id_ = prepared_.request.transaction_id
    assert store.intents.waiting() == 0


def test_a_prepare_that_has_waited_goes_before_one_that_comes_while_its_turn_is_written(
    store: Participant,
) -> None:
    id_ = transaction_id()
    store.prepare(id_, Put(b"k", b"new"))
    [waited] = waiting_preparations(store, 0)
    store.group.holds = True
    store.ask(store.resolution(id_, 0))
    [later] = waiting_preparations(store, 1)
    store.group.holds = False
    store.end(ProposalOutcome.APPLIED)
    assert answer_of(waited)
    assert waits(later)


def test_a_commit_goes_before_all_older_preparations_that_have_waited_with_it(
    store: Participant,
) -> None:
    id_ = transaction_id()
    store.prepare(id_, Put(b"k", b"new"))
    older = waiting_preparations(store, *range(50))
    commit = store.ask(store.transaction(Put(b"k", b"one"), began=store.clock.now() + SECOND))
    assert waits(commit)
    store.resolve(id_, 0)
    assert answer_of(commit)
    assert sum(not waits(each) for each in older) == 1


def test_a_prepare_goes_before_commits_that_come_after_its_turn(store: Participant) -> None:
    id_ = transaction_id()
    store.prepare(id_, Put(b"k", b"new"))
    [prepare] = waiting_preparations(store, 0)
    commits = [store.ask(store.transaction(Put(b"k", b"one"))) for _ in range(50)]
    store.group.holds = True
    store.ask(store.resolution(id_, 0))
    later = [store.ask(store.transaction(Put(b"k", b"one"))) for _ in range(50)]
    store.group.holds = False
    store.end(ProposalOutcome.APPLIED)
    assert answer_of(prepare)
    assert all(answer_of(each) for each in commits)
    assert all(waits(each) for each in later)


def test_writers_wait_again_if_no_proposal_comes_of_the_end_they_have_waited_for(
    store: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = transaction_id()
    store.prepare(id_, Put(b"k", b"new"))
    read = store.ask(Get(b"k"))
    [prepare] = waiting_preparations(store, 0)
    finish = store.replica.proposer._finish
    monkeypatch.setattr(store.replica.proposer, "_finish", fails_once(finish))
    store.ask(store.resolution(id_, 0))
    assert store.records() == 1
    assert list(store.intents.by_transaction) == [id_]
    assert waits(read)
    assert isinstance(prepare.answers[0][1], EngineFailed), "nothing was changed"
    again = store.ask(prepare.request)
    assert waits(again)
    store.resolve(id_, 0)
    assert answer_of(again)


def fails_once(act: Any) -> Any:
    """Return a function that fails, and then does what ``act`` does."""
    acts = iter([None])

    def fail(*given: Any) -> Any:
        for _ in acts:
            raise EngineFailed("a test")
        return act(*given)

    return fail


# --- lost, doubled and late requests


def test_a_prepare_that_comes_twice_has_the_same_answer(store: Participant) -> None:
    request = store.preparation(transaction_id(), Increment(b"n"))
    first: Prepared = store.result(request)
    store.pass_time(1.0)
    assert store.result(request) == first
    again = store.taken_over()
    assert again.result(request) == first


def test_a_later_ballot_replaces_an_earlier_one_which_comes_too_late(store: Participant) -> None:
    id_ = transaction_id()
    first = store.preparation(id_, Put(b"k", b"first"))
    p = store.result(first).timestamp
    q = store.prepare(id_, Put(b"l", b"second"), ballot=LATER).timestamp
    assert q > p
    assert store.commit(Put(b"k", b"free"))
    with pytest.raises(TransactionConflict, match="again"):
        store.result(first)
    store.resolve(id_, q + 1)
    assert len(store.intents) == 1, "the ballot is another one"
    store.resolve(id_, q + 1, LATER)
    assert store.value(b"l") == b"second"


def test_a_record_that_was_prepared_after_the_commit_does_not_belong_to_it(
    store: Participant,
) -> None:
    id_ = transaction_id()
    request = store.preparation(id_, Increment(b"n"))
    p = store.result(request).timestamp
    store.resolve(id_, p)
    store.result(request)
    store.resolve(id_, p)
    assert len(store.intents) == 1
    store.resolve(id_, 0)
    assert int.from_bytes(store.value(b"n") or b"", "big") == 1


def test_a_resolve_of_what_is_not_there_does_nothing(store: Participant) -> None:
    store.resolve(transaction_id(), store.clock.now())
    id_ = transaction_id()
    p = store.prepare(id_, Put(b"k", b"v")).timestamp
    store.resolve(id_, p)
    store.commit(Put(b"k", b"later"))
    store.resolve(id_, p)
    assert store.value(b"k") == b"later"


def test_a_part_for_keys_of_other_ranges_is_refused() -> None:
    store = Participant(b"a", b"m")
    for write in (Put(b"z", b""), DeleteRange(b"b", b"z")):
        with pytest.raises(WrongRange):
            store.prepare(transaction_id(), write)
    with pytest.raises(WrongRange):
        store.prepare(transaction_id(), reads=[b"z"])
    assert store.prepare(transaction_id(), Put(b"b", b""))


# --- leases


def test_intents_are_there_under_the_next_lease(store: Participant) -> None:
    read, id_ = store.clock.now(), transaction_id()
    p = store.prepare(id_, Put(b"k", b"new"), reads=[b"r"], read_timestamp=read).timestamp
    asked = store.ask(Get(b"k"))
    store = store.taken_over()
    with pytest.raises(NotLeaseholder):
        answer_of(asked)
    assert len(store.intents) == 1
    assert waits(store.ask(store.transaction(Put(b"r", b""))))
    reader = store.ask(Get(b"k"))
    assert waits(reader)
    store.resolve(id_, p)
    assert answer_of(reader).value == b"new"
    assert store.intents.waiting() == 0


def test_a_commit_beyond_the_end_of_the_lease_moves_that_end(store: Participant) -> None:
    id_, only_read = transaction_id(), transaction_id()
    store.prepare(id_, Put(b"k", b"new"))
    store.prepare(only_read, reads=[b"r"], read_timestamp=store.clock.now())
    hours_later = store.clock.now() + 5 * 3600 * SECOND
    store.resolve(id_, hours_later)
    assert store.replica.lease.expiration > hours_later
    store.resolve(only_read, 2 * hours_later)
    store = store.taken_over()
    assert store.replica.lease.start > 2 * hours_later
    assert store.commit(Put(b"r", b"later")).timestamp > 2 * hours_later
    assert store.value(b"k") == b"new"


def test_a_read_at_the_timestamp_of_another_range_moves_clock_and_lease() -> None:
    store = Participant(b"a")
    store.commit(Put(b"k", b"v"), anchor=b"k")
    later = store.clock.now() + SECOND // 3
    assert store.value(b"k", later) == b"v"
    assert store.replica.lease.expiration > later
    assert store.commit(Put(b"k", b"w"), anchor=b"k").timestamp > later
    store = store.taken_over()
    assert store.value(b"k", later) == b"v"
    asked = store.ask(Get(b"k", 1 << 62))
    assert isinstance(asked.answers[0][1], ValueError), "no clock goes that far"


# --- refreshes


def test_a_refresh_tells_the_latest_change_between_two_timestamps(store: Participant) -> None:
    begin = store.clock.now()
    first = store.commit(Put(b"k", b"1")).timestamp
    second = store.commit(Put(b"k", b"2")).timestamp
    for what in ({"keys": [b"k"], "spans": []}, {"keys": [], "spans": [(b"a", None)]}):
        assert store.result(Refresh(after=begin, **what)) == second
        assert store.result(Refresh(after=begin, until=first, **what)) == first
        assert store.result(Refresh(after=second, **what)) == 0
        assert store.result(Refresh(after=first, until=second - 1, **what)) == 0


def test_a_refresh_waits_for_what_may_have_committed(store: Participant) -> None:
    begin, id_ = store.clock.now(), transaction_id()
    store.prepare(id_, Put(b"k", b"new"))
    asked = store.ask(Refresh([b"k"], [], begin))
    assert waits(asked)
    ahead = store.clock.now() + 3600 * SECOND
    store.resolve(id_, ahead)
    assert answer_of(asked) == ahead, "it may have been acknowledged before"


def test_later_commits_lie_above_what_a_refresh_has_told(store: Participant) -> None:
    later = store.clock.now() + SECOND // 3
    assert store.result(Refresh([b"k"], [], 1, later)) == 0
    store = store.taken_over()
    assert store.commit(Put(b"k", b"v")).timestamp > later
    for ahead in (store.clock.now() + 3600 * SECOND, 1 << 62):
        with pytest.raises(Invalid, match="in the future"):
            store.result(Refresh([b"k"], [], ahead))


# --- messages, updates and watches


def test_a_message_does_not_arrive_where_a_transaction_has_found_none(store: Participant) -> None:
    id_ = transaction_id()
    p = store.prepare(id_, CheckInbox(b"k", 0, ())).timestamp
    store.commit(EnqueueMessage(b"k", b"message"))
    delivered = store.ask(DeliverDue(10), urgent=False)
    assert waits(delivered)
    store.resolve(id_, p)
    assert delivered.answers
    assert len(store.result(Peek(b"k", 10)).messages) == 1


def test_messages_are_consumed_when_the_transaction_commits(store: Participant) -> None:
    store.commit(EnqueueMessage(b"k", b"one"), EnqueueMessage(b"k", b"two"))
    [(first, _), (second, _)] = store.result(Peek(b"k", 10)).messages
    id_ = transaction_id()
    p = store.prepare(id_, ReapMessages(b"k", [first])).timestamp
    other = store.ask(store.transaction(ReapMessages(b"k", [first])))
    assert waits(other)
    store.resolve(id_, p)
    with pytest.raises(TransactionConflict):
        answer_of(other)
    assert [each for each, _ in store.result(Peek(b"k", 10)).messages] == [second]
    assert len(store.result(Peek(b"k", 10, p - 1)).messages) == 2
    counters = store.messaging.conservation.applied
    assert counters.conserved()
    assert counters.reaped == 1


@pytest.mark.parametrize(
    ("kind", "left", "counted"),
    [
        (partial(PostponeMessages, seconds=5.0), 1, (1, 1, 0)),
        (partial(PostponeMessages, seconds=5.0, hold=True), 1, (1, 1, 0)),
        (partial(PostponeMessages, seconds=0.0), 2, (2, 0, 0)),
        (partial(PostponeMessages, attempts_max=1), 1, (1, 0, 1)),
        (BuryMessages, 1, (1, 0, 1)),
    ],
    ids=["later", "holding", "at once", "last", "buried"],
)
def test_messages_tried_in_vain_leave_their_inbox_when_the_transaction_commits(
    store: Participant, kind: Any, left: int, counted: tuple[int, int, int]
) -> None:
    store.commit(EnqueueMessage(b"k", b"one"), EnqueueMessage(b"k", b"two"))
    [(first, _), _] = store.result(Peek(b"k", 10)).messages
    dead = transaction_id()
    store.prepare(dead, kind(b"k", [(first, 0)]))
    store.resolve(dead, 0)
    id_ = transaction_id()
    p = store.prepare(id_, kind(b"k", [(first, 0)])).timestamp
    counters = store.messaging.conservation.applied
    assert (counters.delivered, counters.pending, counters.dead) == (2, 0, 0)
    others = [
        store.ask(store.transaction(BuryMessages(b"k", [(first, 0)]))),
        store.ask(NoteAttempts(b"k", [first], "lost", "", 0, b"")),
    ]
    assert all(map(waits, others))
    store.resolve(id_, p)
    with pytest.raises(TransactionConflict):
        answer_of(others[0])
    assert others[1].answers
    assert len(store.result(Peek(b"k", 10)).messages) == left
    assert len(store.result(Peek(b"k", 10, p - 1)).messages) == 2
    counters = store.messaging.conservation.applied
    assert counters.conserved()
    assert (counters.delivered, counters.pending, counters.dead) == counted


def test_a_deferred_update_waits_for_a_transaction_and_keeps_its_order(store: Participant) -> None:
    id_ = transaction_id()
    p = store.prepare(id_, Put(b"k", b"new")).timestamp
    store.commit(EnqueueUpdate(Delete(b"k")), EnqueueUpdate(Put(b"k", b"last")))
    executed = store.ask(ExecuteDue(10), urgent=False)
    assert waits(executed)
    store.resolve(id_, p)
    assert executed.answers
    assert store.value(b"k") == b"last"
    assert store.messaging.conservation.applied.conserved()


def test_a_watch_is_told_no_timestamp_below_which_a_commit_may_come(store: Participant) -> None:
    begin = store.clock.now()
    watch = ScanChanges(b"", None, begin, wait=False)
    id_ = transaction_id()
    p = store.prepare(id_, Put(b"k", b"new")).timestamp
    store.commit(Put(b"x", b"other"))
    assert store.result(watch).until < p
    assert store.result(watch).changes == []
    waiting = store.ask(ScanChanges(b"", None, store.result(watch).until))
    assert waits(waiting)
    store.resolve(id_, p)
    changes = answer_of(waiting).changes
    assert [change.key for change in changes] == [b"k", b"x"]
    assert [change.timestamp for change in changes] == sorted(
        change.timestamp for change in changes
    )
    last = store.result(ScanChanges(b"", None, p, wait=False))
    assert [change.key for change in last.changes] == [b"x"]


def test_a_watch_that_can_be_told_nothing_waits_until_the_prepared_write_is_over(
    store: Participant,
) -> None:
    begin = store.clock.now()
    store.result(ScanChanges(b"", None, begin, wait=False))  # changes are kept from now on
    id_ = transaction_id()
    p = store.prepare(id_, Put(b"k", b"new")).timestamp
    store.commit(Put(b"x", b"other"))
    waiting = store.ask(ScanChanges(b"", None, p - 1))
    assert waits(waiting)
    store.commit(Put(b"y", b"other"))
    assert waits(waiting)
    store.resolve(id_, 0)
    assert [change.key for change in answer_of(waiting).changes] == [b"x", b"y"]


def test_changes_up_to_a_timestamp_wait_for_prepared_writes_of_their_span_alone(
    store: Participant,
) -> None:
    begin = store.clock.now()
    id_ = transaction_id()
    p = store.prepare(id_, Put(b"k", b"new")).timestamp
    store.commit(Put(b"x", b"other"))
    until = store.clock.now()
    beside = store.result(ScanChanges(b"l", None, begin, wait=False, until=until))
    assert [change.key for change in beside.changes] == [b"x"]
    assert beside.until == until
    asked = store.ask(ScanChanges(b"", None, begin, wait=False, until=until))
    assert waits(asked)
    store.resolve(id_, p)
    assert [change.key for change in answer_of(asked).changes] == [b"k", b"x"]
    assert answer_of(asked).until == until


# --- conditions, locks and limits


def test_a_prepare_checks_conditions_and_reads(store: Participant) -> None:
    read = store.clock.now()
    store.commit(Put(b"k", b"v"))
    with pytest.raises(ConditionFailed):
        store.prepare(transaction_id(), ConditionalPut(b"k", b"", b"another"))
    with pytest.raises(TransactionConflict):
        store.prepare(transaction_id(), reads=[b"k"], read_timestamp=read)
    with pytest.raises(TransactionConflict):
        store.prepare(transaction_id(), spans=[(b"a", b"z")], read_timestamp=read)
    assert not store.intents


def test_a_prepare_does_not_wait_for_a_lock(store: Participant) -> None:
    owner = transaction_id()
    store.result(GetForUpdate(b"k", 0, owner, 60.0))
    with pytest.raises(TransactionConflict) as caught:
        store.prepare(transaction_id(), Put(b"k", b""))
    assert caught.value.keys == (b"k",)
    p = store.prepare(owner, Put(b"k", b"")).timestamp
    assert store.replica.holders.knows(owner)
    store.resolve(owner, p)
    assert not store.replica.holders.knows(owner)


def test_a_record_of_nine_mebibytes_is_refused(store: Participant) -> None:
    large = [Put(b"%d" % number, bytes(1024 * 1024)) for number in range(9)]
    with pytest.raises(TransactionTooLarge, match="the limit is 8,388,608 bytes"):
        store.prepare(transaction_id(), *large)
    assert not store.intents
    assert store.records() == 0


def test_a_hundred_thousand_spans_are_refused(store: Participant) -> None:
    spans = [(b"%06d" % number, b"%06d\x01" % number) for number in range(100_000)]
    with pytest.raises(TransactionTooLarge, match="100,000 spans"):
        store.prepare(transaction_id(), spans=spans, read_timestamp=store.clock.now())


def test_many_records_are_refused_until_some_are_resolved(
    store: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "PREPARED_MAX", 2)
    ids = [transaction_id() for _ in range(3)]
    for number, id_ in enumerate(ids[:2]):
        store.prepare(id_, Put(b"%d" % number, b""))
    with pytest.raises(Unavailable, match="try again"):
        store.prepare(ids[2], Put(b"2", b""))
    store.resolve(ids[0], 0)
    assert store.prepare(ids[2], Put(b"2", b""))
    store.resolve(ids[1], 0)
    monkeypatch.setattr(prepared, "PREPARED_BYTES_MAX", 100)
    with pytest.raises(Unavailable, match="100 bytes"):
        store.prepare(transaction_id(), Put(b"3", b""))


def test_a_write_that_cannot_be_prepared_is_refused(store: Participant) -> None:
    with pytest.raises(Invalid, match="EnqueueMessage concerns another range"):
        store.prepare(transaction_id(), EnqueueMessage(b"k", b""))


def test_long_reads_are_checked_beside_the_proposals(
    store: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.limits.TURN_STEPS_MAX", 64)
    for number in range(100):
        store.commit(Put(b"%03d" % number, b""))
    read = store.clock.now()
    prepared_ = store.prepare(
        transaction_id(), DeleteRange(b"", b"050"), spans=[(b"", None)], read_timestamp=read
    )
    assert prepared_.answers == [50]
    assert waits(store.ask(store.transaction(Put(b"099", b""))))


def test_a_read_that_waited_goes_on_when_memory_knows_the_whole_proposal(
    store: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reap that went on before a message had arrived in memory passed the message over."""
    store.prepare(transaction_id(), Put(b"k", b"new"))
    (intent,) = store.intents.by_transaction.values()
    asked = store.ask(Get(b"k"))
    assert waits(asked)
    assert list(intent.waiting) == [asked]
    seen: list[object] = []
    monkeypatch.setattr(store.intents, "resume", seen.extend)
    others = partial(seen.append, "memory")
    store.replica.answers.tell([], [partial(store.intents.gone, intent), others])
    assert seen == ["memory", asked]
