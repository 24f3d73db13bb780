"""Each rule of the two ends of a channel, on ranges whose network does what the test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from postroom import limits
from postroom.errors import Invalid, OutboxFull, Unavailable
from postroom.kv import keys
from postroom.messaging import due as times
from postroom.messaging.handover import outgoing, sending
from postroom.messaging.handover.channels import LANES, Channel, lane_of
from postroom.messaging.handover.marks import MarkedSpan
from postroom.messaging.handover.requests import DropHandedOver, HandOver
from postroom.messaging.requests import (
    AwaitQuiet,
    CancelScheduled,
    CheckInbox,
    Deliverable,
    EnqueueMessage,
    EnqueueUpdate,
    Executable,
    ListDeadLetters,
    ListScheduled,
    ReapQueue,
    ReplayDeadLetters,
)
from postroom.ranges.accounting import summed_prefixes
from postroom.ranges.bounds import WrongRange
from postroom.ranges.requests import Accounting, DeleteRange, Get, Increment, Put
from tests.messaging.handover.several_ranges import Member, Ranges
from tests.messaging.one_range import Asked

HERE, THERE = b"db", b"pd"
"""A key of the first range, and one of the second."""


@pytest.fixture
def ranges() -> Iterator[Ranges]:
    made = Ranges(b"n")
    yield made
    made.close()


def deliver_all(ranges: Ranges) -> None:
    """Let each batch arrive once, and each answer."""
    network = ranges.network
    for number in range(len(network.batches)):
        network.deliver(number)
    network.batches.clear()
    while network.answers:
        answered, told = network.answers.pop(0)
        answered(told)


def outcome(member: Member, request: Any) -> Any:
    result, error = member.store.ask(request, urgent=False).answers[0]
    if error is not None:
        raise error
    return result


def message(key: bytes, when: int, ordinal: int = 1) -> tuple[bytes, Deliverable]:
    """Return a message of range 7 with its position."""
    position = keys.u64(when) * 2 + keys.u64(7) + keys.u32(ordinal)
    return position, Deliverable(key, b"m", None, bytes(16), b"")


def batch(*messages: tuple[bytes, Deliverable], start: bytes = b"n") -> HandOver:
    return HandOver(Channel(7, False, 0), start, None, messages)


# --- the sending end ------------------------------------------------------------------------------


def test_a_message_for_another_range_is_outgoing_until_that_has_taken_it(ranges: Ranges) -> None:
    first, second = ranges.members
    ranges.send(first, HERE, THERE)
    assert ranges.seen[HERE] == []
    ranges.look()
    assert len(ranges.seen[HERE]) == 1
    assert (first.counters().delivered, first.counters().outgoing_messages) == (1, 1)
    first.step()
    deliver_all(ranges)
    assert (second.counters().received, second.counters().delivered) == (1, 1)
    assert first.counters().handed == 0
    first.step()
    assert (first.counters().handed, first.counters().outgoing) == (1, 0)
    assert first.counters().outgoing_bytes == 0
    ranges.check_end()


def test_updates_are_carried_out_where_their_keys_are(ranges: Ranges) -> None:
    first, second = ranges.members
    ranges.add(first, HERE, THERE, THERE)
    assert first.counters().executed == 1
    first.step()
    deliver_all(ranges)
    first.step()
    assert second.counters().executed == 2
    ranges.check_end()


def test_an_update_that_cannot_succeed_is_a_dead_letter_of_the_range_of_its_key(
    ranges: Ranges,
) -> None:
    first, second = ranges.members
    ranges.commit(second, Put(THERE, b"text"))
    ranges.commit(first, EnqueueUpdate(Increment(THERE)))
    first.step()
    deliver_all(ranges)
    first.step()
    (letter,) = outcome(second, ListDeadLetters(10))
    assert int.from_bytes(letter.id[:8], "big") == second.range_id
    assert int.from_bytes(letter.id[16:24], "big") == first.range_id
    with pytest.raises(WrongRange):
        ranges.commit(first, ReplayDeadLetters([letter.id]))
    ranges.commit(second, Put(THERE, (5).to_bytes(8, "big"), True))
    ranges.commit(second, ReplayDeadLetters([letter.id]))
    ranges.pass_time(1.0)
    assert outcome(second, Get(THERE)).value == (6).to_bytes(8, "big")


def test_a_scheduled_message_can_be_cancelled_until_it_goes_out(ranges: Ranges) -> None:
    first, _ = ranges.members
    ranges.send(first, THERE, milliseconds=1000)
    ranges.send(first, THERE, milliseconds=2000)
    soon, later = outcome(first, ListScheduled(b"", None, 10)).entries
    assert (first.counters().pending_messages, first.counters().outgoing) == (2, 0)
    ranges.pass_time(1.5)
    assert (first.counters().pending_messages, first.counters().outgoing) == (1, 1)
    assert ranges.commit(first, CancelScheduled([soon.id, later.id])).answers == [1]
    assert (first.counters().cancelled, first.counters().outgoing) == (1, 1)


def test_positions_rise_although_older_messages_go_out_later(ranges: Ranges) -> None:
    first, _ = ranges.members
    ranges.send(first, THERE, milliseconds=1000)
    ranges.send(first, THERE)
    ranges.pass_time(2.0)
    positions = [position for position, _ in first.outgoing(False)]
    ids = [position[8:] for position in positions]
    assert ids == sorted(ids, reverse=True)
    assert positions == sorted(positions)


def test_a_drain_waits_for_messages_that_are_on_their_way(ranges: Ranges) -> None:
    first, _ = ranges.members
    ranges.send(first, THERE)
    waiting = first.store.ask(AwaitQuiet())
    assert waiting.answers == []
    assert first.store.messaging.first_due(first.store.engine) > 0
    first.step()
    deliver_all(ranges)
    first.step()
    assert waiting.answers == [(None, None)]
    assert first.store.messaging.first_due(first.store.engine) == 0


# --- updates of several ranges -------------------------------------------------------------------


@pytest.fixture
def cut_at_metrics() -> Iterator[Ranges]:
    """Return two ranges; the second one begins among the prefixes of ``a/n/1``."""
    made = Ranges(b"a/n")
    yield made
    made.close()


def test_ranges_carry_out_the_parts_of_an_update_for_their_keys(cut_at_metrics: Ranges) -> None:
    first, second = cut_at_metrics.members
    cut_at_metrics.post(first, b"a/n/1")
    for key in (b"a/a/written", b"a/z/written"):
        cut_at_metrics.commit(cut_at_metrics.owner(key), Put(key, b"1"))
    cut_at_metrics.commit(first, EnqueueUpdate(DeleteRange(b"a", b"b")))
    assert first.counters().outgoing_updates == 2
    for _ in range(2):
        first.step()
        deliver_all(cut_at_metrics)
    assert (first.counters().enqueued, first.counters().handed) == (2, 2)
    assert (first.counters().received, first.counters().executed) == (2, 2)
    assert (second.counters().enqueued, second.counters().executed) == (2, 2)
    for key in (b"a/a/written", b"a/z/written"):
        assert outcome(cut_at_metrics.owner(key), Get(key)).value is None
    cut_at_metrics.check_end()


def test_an_update_stays_until_all_ranges_have_taken_their_parts(cut_at_metrics: Ranges) -> None:
    first, second = cut_at_metrics.members
    network = cut_at_metrics.network
    cut_at_metrics.post(first, b"a/n/1")
    first.step()
    own = next(number for number, each in enumerate(network.batches) if each[0] == 1)
    network.deliver(own)
    answered, *told = network.answers.pop()
    answered(*told)
    network.batches.clear()  # the other part is lost
    for _ in range(3):
        first.step()
    assert first.counters().outgoing_updates == 1
    assert network.batches == []
    first.lead_anew()
    first.step()
    deliver_all(cut_at_metrics)
    first.step()
    assert (first.counters().outgoing_updates, first.counters().handed) == (0, 1)
    assert (first.counters().executed, second.counters().executed) == (1, 1)
    cut_at_metrics.check_end()


def deliver_to(ranges: Ranges, range_id: int) -> None:
    """Let the batches for a range arrive, and their answers; the others are lost."""
    network = ranges.network
    network.batches = [each for each in network.batches if each[0] == range_id]
    deliver_all(ranges)


def test_an_update_stays_while_it_is_found_again_for_one_of_its_ranges(
    cut_at_metrics: Ranges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "KEPT", 1)
    first, second = cut_at_metrics.members
    for _ in range(3):
        cut_at_metrics.post(first, b"a/n/1")
    for _ in range(6):
        first.step()
        deliver_to(cut_at_metrics, 1)
    assert (first.counters().executed, second.counters().executed) == (3, 0)
    assert first.counters().outgoing_updates == 3
    first.store.seconds += sending.ANSWER_SECONDS + 1
    for _ in range(9):
        first.step()
        deliver_all(cut_at_metrics)
    cut_at_metrics.check_end()


def test_an_update_that_is_answered_before_it_is_read_again_stays(
    cut_at_metrics: Ranges, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = cut_at_metrics.members
    for _ in range(2):
        cut_at_metrics.post(first, b"a/n/1")
    first.step()
    network = cut_at_metrics.network
    network.deliver(next(number for number, each in enumerate(network.batches) if each[0] == 1))
    network.batches.clear()
    monkeypatch.setattr(sending, "READ_AT_ONCE", 1)
    network.version += 1
    first.step()
    network.batches.clear()
    deliver_all(cut_at_metrics)  # the answer from before
    first.step()
    assert first.counters().outgoing_updates == 2
    first.store.seconds += sending.ANSWER_SECONDS + 1
    for _ in range(9):
        first.step()
        deliver_all(cut_at_metrics)
    cut_at_metrics.check_end()


def test_two_parts_of_an_update_may_die_in_one_range(ranges: Ranges) -> None:
    _, second = ranges.members
    ranges.commit(second, EnqueueUpdate(Accounting(b"p/q", {"n": limits.INTEGER_MAX})))
    position, _ = message(THERE, 5)
    for span in ((b"n", b"p/a"), (b"p/a", None)):
        part = Executable(Accounting(b"p/q", {"n": 1}, span), bytes(16), b"")
        entries = ((position, part),)
        outcome(second, HandOver(Channel(7, True, 0), *span, (), entries, (position,)))
    assert second.counters().dead_letters == len(outcome(second, ListDeadLetters(10))) == 2


def test_a_part_that_cannot_succeed_dies_alone_and_is_replayed_alone(
    cut_at_metrics: Ranges,
) -> None:
    first, second = cut_at_metrics.members
    full = Accounting(b"a/n", {"n": limits.INTEGER_MAX}, (b"a/n", None))
    cut_at_metrics.commit(second, EnqueueUpdate(full))
    cut_at_metrics.post(first, b"a/n/1")
    first.step()
    deliver_all(cut_at_metrics)
    first.step()
    (letter,) = outcome(second, ListDeadLetters(10))
    assert summed_prefixes(letter.record.update.request) == [b"a/n", b"a/n/1"]
    assert (second.counters().dead, first.counters().executed) == (1, 1)
    less = Accounting(b"a/n", {"n": -limits.INTEGER_MAX}, (b"a/n", None))
    cut_at_metrics.commit(second, EnqueueUpdate(less))
    cut_at_metrics.commit(second, ReplayDeadLetters([letter.id]))
    cut_at_metrics.pass_time(1.0)
    cut_at_metrics.check_end()


@pytest.mark.parametrize("update", [DeleteRange(b"z", b"b"), Accounting(b"/", {"n": 1})])
def test_an_update_without_keys_goes_nowhere(cut_at_metrics: Ranges, update: Any) -> None:
    first, _ = cut_at_metrics.members
    cut_at_metrics.post(first, b"a/n/1")
    cut_at_metrics.commit(first, EnqueueUpdate(update))
    assert (first.counters().executed, first.counters().outgoing_updates) == (1, 1)


def test_received_updates_that_have_to_wait_keep_their_order(cut_at_metrics: Ranges) -> None:
    first, second = cut_at_metrics.members
    cut_at_metrics.commit(second, EnqueueUpdate(Increment(b"b"), times.after(5000)))
    cut_at_metrics.commit(first, EnqueueUpdate(DeleteRange(b"a", b"z")))
    cut_at_metrics.commit(first, EnqueueUpdate(Put(b"b/written", b"1")))
    first.step()
    deliver_all(cut_at_metrics)
    assert second.counters().pending_updates == 3
    cut_at_metrics.pass_time(1.0)
    assert second.counters().executed == 2
    assert outcome(second, Get(b"b/written")).value == b"1"


def test_a_range_is_not_quiet_while_received_updates_wait(
    ranges: Ranges, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ranges.members
    for number in range(100):
        ranges.commit(first, EnqueueUpdate(Put(b"p%03d" % number, b"1")))
    first.step()
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 64)  # it leaves some for later
    deliver_all(ranges)
    assert second.counters().pending_updates > 0
    asked = second.store.ask(AwaitQuiet())
    assert not asked.answers
    for _ in range(3):
        ranges.pass_time(1.0)
    assert asked.answers == [(None, None)]


def test_updates_that_come_back_to_their_range_are_carried_out_there(
    cut_at_metrics: Ranges,
) -> None:
    first, _ = cut_at_metrics.members
    cut_at_metrics.commit(first, EnqueueUpdate(Increment(b"a"), times.after(5000)))
    cut_at_metrics.post(first, b"a/n/1")
    for _ in range(4):
        first.step()
        cut_at_metrics.post(first, b"a/n/1")
        deliver_all(cut_at_metrics)  # the first waits here while the second is outgoing
        cut_at_metrics.pass_time(0.01)
    for _ in range(4):
        first.step()
        deliver_all(cut_at_metrics)
        cut_at_metrics.pass_time(0.01)
    assert first.counters().outgoing_updates == 0
    assert first.counters().executed == 5
    cut_at_metrics.pass_time(5.0)
    cut_at_metrics.check_end()


def test_updates_of_a_transaction_keep_their_order_if_one_goes_out(cut_at_metrics: Ranges) -> None:
    first, _ = cut_at_metrics.members
    updates = [DeleteRange(b"a", b"b"), Put(b"a/a/written", b"1")]
    cut_at_metrics.commit(first, *map(EnqueueUpdate, updates))
    for _ in range(2):
        first.step()
        deliver_all(cut_at_metrics)
    assert outcome(first, Get(b"a/a/written")).value == b"1"


def test_an_update_that_comes_back_to_its_range_is_not_overtaken(cut_at_metrics: Ranges) -> None:
    first, _ = cut_at_metrics.members
    cut_at_metrics.commit(first, EnqueueUpdate(Put(b"a/a/written", b"1"), times.after(100)))
    cut_at_metrics.commit(first, EnqueueUpdate(DeleteRange(b"a", b"b")))
    cut_at_metrics.pass_time(0.0)
    first.step()
    first.store.seconds += 1.0  # the other one is due, and waits
    deliver_all(cut_at_metrics)
    first.step()
    assert (first.counters().outgoing_updates, first.counters().pending_updates) == (0, 2)
    cut_at_metrics.pass_time(0.01)
    assert outcome(first, Get(b"a/a/written")).value == b"1"


def test_a_deletion_that_goes_on_in_another_range_spares_what_was_written_since(
    ranges: Ranges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DELETED_AT_ONCE_MAX", 2)
    first, _ = ranges.members
    for number in range(8):
        ranges.commit(first, Put(b"a%d" % number, b"old"))
    ranges.commit(first, EnqueueUpdate(DeleteRange(b"a", b"b")))
    assert first.counters().pending_updates == 1
    ranges.split(first, b"a4")
    right = ranges.owner(b"a7")
    ranges.commit(right, Put(b"a7", b"new"))
    for _ in range(8):
        ranges.pass_time(0.1)
        first.step()
        deliver_all(ranges)
    left = {
        number: outcome(ranges.owner(b"a%d" % number), Get(b"a%d" % number)).value
        for number in range(8)
    }
    assert {number for number, value in left.items() if value is not None} == {7}
    assert left[7] == b"new"


def test_a_full_outbox_refuses_what_would_add_to_it_and_nothing_else(
    ranges: Ranges, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = ranges.members
    monkeypatch.setattr(limits, "OUTGOING_MAX", 2)
    ranges.send(first, THERE, THERE)
    for write in (EnqueueMessage(THERE, b"m"), EnqueueUpdate(Increment(THERE))):
        with pytest.raises(OutboxFull, match="nothing happened"):
            ranges.commit(first, Put(b"a", b"1"), write)
    assert outcome(first, Get(b"a")).value is None
    ranges.commit(first, EnqueueMessage(HERE, b"m"), EnqueueMessage(THERE, b"m", None, 1 << 62 | 9))
    first.step()
    deliver_all(ranges)
    first.step()
    ranges.commit(first, EnqueueMessage(THERE, b"m"))


def test_a_full_outbox_is_measured_in_bytes_too(
    ranges: Ranges, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = ranges.members
    monkeypatch.setattr(limits, "OUTGOING_BYTES_MAX", 100)
    ranges.send(first, THERE, THERE)
    with pytest.raises(OutboxFull):
        ranges.send(first, THERE)


def test_an_entry_that_is_deleted_twice_is_counted_once(ranges: Ranges) -> None:
    first, _ = ranges.members
    ranges.send(first, THERE)
    ((position, _),) = first.outgoing(False)
    assert outcome(first, DropHandedOver(False, (position, position))) == 1
    assert outcome(first, DropHandedOver(False, (position,))) == 0
    assert first.counters().handed == 1


def test_a_batch_takes_one_log_entry_at_each_end(ranges: Ranges) -> None:
    first, second = ranges.members
    ranges.send(first, *([THERE] * limits.HANDED_OVER_MAX))
    before = [member.store.group._index for member in ranges.members]
    first.step()
    deliver_all(ranges)
    first.step()
    assert second.counters().received == first.counters().handed == limits.HANDED_OVER_MAX
    after = [member.store.group._index for member in ranges.members]
    assert [index - was for index, was in zip(after, before, strict=True)] == [1, 1]


def test_lists_go_on_after_an_entry_of_another_range(ranges: Ranges) -> None:
    first, _ = ranges.members
    ranges.commit(first, Put(HERE, b"text"))
    for milliseconds in (0, 0, 1000, 1000):
        due = times.after(milliseconds) if milliseconds else 0
        ranges.commit(first, EnqueueUpdate(Increment(HERE), due))
    lists: list[Callable[[bytes], list[bytes]]] = [
        lambda after: [each.id for each in outcome(first, ListDeadLetters(9, 1 << 20, after))],
        lambda after: [
            each.id for each in outcome(first, ListScheduled(b"", None, 9, 1 << 20, after)).entries
        ],
    ]
    for listed in lists:
        one, other = listed(b"")
        assert listed(one) == [other]
        assert listed(keys.u64(0) + one[8:]) == [one, other]
        assert listed(keys.u64(9) + one[8:]) == [other]


# --- keys that have come to the sender ------------------------------------------------------------


def taken_over(ranges: Ranges) -> Member:
    """Let the first range take over the second one, with a message for it on its way."""
    first, _ = ranges.members
    ranges.send(first, THERE)
    ranges.take_over(first)
    return first


def test_a_message_joins_outgoing_ones_for_its_key_and_no_others_do(ranges: Ranges) -> None:
    first = taken_over(ranges)
    ranges.send(first, HERE, THERE)
    assert first.counters().outgoing_messages == 2
    for _ in range(3):
        first.step()
        deliver_all(ranges)
    assert first.counters().outgoing == 0
    ranges.send(first, THERE)
    assert first.counters().outgoing == 0, "the key is not counted any more"
    ranges.check_end()


def test_a_commit_does_not_find_an_inbox_as_it_was_while_a_message_for_it_is_on_its_way(
    ranges: Ranges,
) -> None:
    first = taken_over(ranges)
    ranges.commit(first, CheckInbox(HERE, 0, ()), Put(b"a", b"1"))
    with pytest.raises(Exception, match="inbox"):
        ranges.commit(first, CheckInbox(THERE, 0, ()), Put(b"a", b"2"))


def test_all_messages_join_if_too_many_were_outgoing_to_be_counted(
    ranges: Ranges, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = ranges.members
    monkeypatch.setattr(outgoing, "COUNTED_AT_ONCE", 1)
    ranges.send(first, THERE, THERE)
    ranges.take_over(first)
    ranges.send(first, HERE)
    assert first.counters().outgoing_messages == 3
    for _ in range(4):
        first.step()
        deliver_all(ranges)
    ranges.send(first, HERE)
    assert first.counters().outgoing == 0
    ranges.check_end()


# --- the receiving end ----------------------------------------------------------------------------


def test_a_batch_is_taken_once_and_answered_again(ranges: Ranges) -> None:
    _, second = ranges.members
    known = batch(message(THERE, 5), message(THERE, 6))
    marked = [MarkedSpan(b"n", None, known.messages[-1][0])]
    assert outcome(second, known) == marked
    assert outcome(second, known) == marked
    assert second.counters().received == 2


def test_a_batch_of_which_some_is_known_is_refused_with_the_mark(ranges: Ranges) -> None:
    _, second = ranges.members
    marked = outcome(second, batch(message(THERE, 5)))
    assert outcome(second, batch(message(THERE, 5), message(THERE, 6))) == marked
    assert second.counters().received == 1
    outcome(second, batch(message(THERE, 6)))
    assert second.counters().received == 2


def test_one_who_waits_gets_the_messages_of_two_ranges_in_order(ranges: Ranges) -> None:
    _, second = ranges.members
    store = second.store
    outcome(second, batch(message(THERE, 6)))
    holder, waiting = (
        store.ask(ReapQueue(THERE, 20, 1000, each * 16, 60.0, wait=True)) for each in (b"h", b"w")
    )
    requests = (
        batch(message(THERE, 7)),
        HandOver(Channel(8, False, 0), b"n", None, (message(THERE, 5),)),
    )
    for request in requests:
        store.replica.submit(Asked(request, urgent=False))
    store.settle()
    found = [[id_ for id_, _ in each.answers[0][0].messages] for each in (holder, waiting)]
    five, six, seven = (message(THERE, when)[0][8:] for when in (5, 6, 7))
    assert found == [[six], [five, seven]]


def test_each_channel_has_marks_of_its_own(ranges: Ranges) -> None:
    _, second = ranges.members
    outcome(second, batch(message(THERE, 5)))
    other = HandOver(Channel(7, False, 1), b"n", None, (message(THERE, 4),))
    outcome(second, other)
    update = Executable(Increment(THERE), bytes(16), b"")
    for position in (message(THERE, 3)[0],) * 2:
        outcome(second, HandOver(Channel(7, True, 0), b"n", None, (), ((position, update),)))
    assert (second.counters().delivered, second.counters().executed) == (2, 1)


@pytest.mark.parametrize("start", [b"", b"m"])
def test_a_batch_for_other_keys_than_those_of_the_range_is_refused(
    ranges: Ranges, start: bytes
) -> None:
    _, second = ranges.members
    with pytest.raises(Exception, match="other ranges"):
        outcome(second, batch(message(THERE, 5), start=start))
    assert second.counters().received == 0


def test_a_batch_is_checked(ranges: Ranges) -> None:
    _, second = ranges.members
    with pytest.raises(Invalid, match="do not rise"):
        outcome(second, batch(message(THERE, 6), message(THERE, 5)))
    with pytest.raises(Invalid, match="not in its span"):
        outcome(second, batch(message(HERE, 5)))
    for update in (DeleteRange(b"m", b"o"), DeleteRange(b"o", None), Increment(HERE)):
        entries = ((message(THERE, 5)[0], Executable(update, bytes(16), b"")),)
        with pytest.raises(Invalid, match="not in its span"):
            outcome(second, HandOver(Channel(7, True, 0), b"n", b"p", (), entries))
    assert second.counters().received == 0


def test_a_message_is_never_received_before_it_was_sent(ranges: Ranges) -> None:
    _, second = ranges.members
    with pytest.raises(Unavailable, match="clock"):
        outcome(second, batch(message(THERE, ranges.now() + (1 << 30))))
    assert second.counters().received == 0


def test_a_received_update_waits_behind_those_that_wait(ranges: Ranges) -> None:
    first, second = ranges.members
    ranges.commit(second, EnqueueUpdate(Increment(THERE), 1 << 62 | 1000))
    ranges.add(first, THERE)
    first.step()
    deliver_all(ranges)
    assert (second.counters().received, second.counters().pending_updates) == (1, 2)
    ranges.pass_time(2.0)
    assert second.counters().executed == 2


# --- the service ----------------------------------------------------------------------------------


def test_a_batch_is_a_prefix_within_the_limits_and_one_is_under_way(
    ranges: Ranges, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = ranges.members
    monkeypatch.setattr(sending, "HANDED_OVER_MAX", 3)
    ranges.send(first, *([THERE] * 8))
    first.step()
    first.step()
    ((range_id, request, _),) = ranges.network.batches
    assert range_id == 2
    assert [each for each, _ in request.messages] == [each for each, _ in first.outgoing(False)][:3]
    for _ in range(8):
        deliver_all(ranges)
        first.step()
    ranges.check_end()


def test_a_batch_is_as_large_as_its_limit_of_bytes(
    ranges: Ranges, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = ranges.members
    monkeypatch.setattr(sending, "HANDED_OVER_BYTES_MAX", 100)
    ranges.send(first, *([THERE] * 8))
    first.step()
    ((_, request, _),) = ranges.network.batches
    assert 1 < len(request.messages) < 8
    monkeypatch.setattr(sending, "HANDED_OVER_BYTES_MAX", 1)
    for _ in range(12):
        deliver_all(ranges)
        first.step()
    ranges.check_end()


def test_the_bytes_under_way_are_limited_and_destinations_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "UNDER_WAY_BYTES", 1)
    ranges = Ranges(b"k", b"p")
    first, *_ = ranges.members
    ranges.send(first, b"kg", b"pd")
    reached: list[int] = []
    for _ in range(8):
        first.step()
        assert len(ranges.network.batches) <= 1
        reached += [range_id for range_id, *_ in ranges.network.batches]
        ranges.send(first, b"kg", b"pd")
        deliver_all(ranges)
    assert reached[:4] == [2, 3, 2, 3]
    for _ in range(10):
        first.step()
        deliver_all(ranges)
    ranges.check_end()
    ranges.close()


def test_a_batch_without_an_answer_is_sent_again(ranges: Ranges) -> None:
    first, _ = ranges.members
    ranges.send(first, THERE)
    first.step()
    first.step()
    assert len(ranges.network.batches) == 1
    first.store.seconds += sending.ANSWER_SECONDS + 1
    first.step()
    assert len(ranges.network.batches) == 2


def test_a_range_that_cannot_be_reached_holds_up_no_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "KEPT", 4)
    monkeypatch.setattr(sending, "READ_AT_ONCE", 5)
    ranges = Ranges(b"k", b"p")
    first, second, third = ranges.members
    for _ in range(10):
        ranges.send(first, b"kg", b"kg", b"pd")
    for _ in range(60):
        first.step()
        network = ranges.network
        network.batches = [each for each in network.batches if each[0] == third.range_id]
        deliver_all(ranges)
        first.store.seconds += 0.01
    assert (second.counters().received, third.counters().received) == (0, 10)
    first.store.seconds += sending.ANSWER_SECONDS + 1
    for _ in range(60):
        first.step()
        deliver_all(ranges)
    assert second.counters().received == 20
    ranges.check_end()
    ranges.close()


def test_a_service_pauses_longer_after_each_failure(ranges: Ranges) -> None:
    first, _ = ranges.members
    ranges.send(first, THERE)
    times = []
    for _ in range(300):
        first.step()
        if ranges.network.batches:
            times.append(first.store.seconds)
            _, _, answered = ranges.network.batches.pop()
            answered(Unavailable("nobody leads"))
        first.store.seconds += 0.05
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.3
    assert 2.0 < pauses[-1] <= sending.PAUSE_SECONDS_LAST + 0.1


def test_messages_of_a_key_are_in_one_lane() -> None:
    lanes = {lane_of(b"%d" % number) for number in range(1000)}
    assert lanes == set(range(LANES))
    assert lane_of(b"a key") == 5, "all versions of the program agree"


# --- both ways ------------------------------------------------------------------------------------


def test_the_usual_way_leaves_messages_for_other_ranges_to_the_general_one() -> None:
    told = []
    for is_general_only in (True, False):
        made = Ranges(b"n")
        first, _ = made.members
        if is_general_only:
            first.store.replica.usual_way = None
        made.send(first, HERE, THERE)
        made.add(first, HERE)
        made.add(first, HERE, THERE)
        span = keys.KeySpan(keys.STORE, keys.DATA_END)
        told.append(dict(first.store.engine.iterate(*span)))
        made.close()
    assert told[0] == told[1]
