"""Each rule of the two ends of a channel, on ranges whose network does what the test says."""

from __future__ import annotations

from collections.abc import Callable
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
)
from postroom.ranges.requests import DeleteRange, Get, Increment, Put
from tests.messaging.handover.several_ranges import Member, Ranges
from tests.messaging.one_range import Asked

HERE, THERE = b"db", b"pd"
"""A key of the first range, and one of the second."""


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
    ranges.deliver_all()
    assert (second.counters().received, second.counters().delivered) == (1, 1)
    assert first.counters().handed == 0
    first.step()
    assert (first.counters().handed, first.counters().outgoing) == (1, 0)
    assert first.counters().outgoing_bytes == 0
    ranges.check_end()


def test_a_scheduled_message_can_be_cancelled_until_it_goes_out(ranges: Ranges) -> None:
    first, _ = ranges.members
    ranges.send(first, THERE, milliseconds=1000)
    ranges.send(first, THERE, milliseconds=2000)
    soon, later = first.outcome(ListScheduled(b"", None, 10)).entries
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
    ranges.deliver_all()
    first.step()
    assert waiting.answers == [(None, None)]
    assert first.store.messaging.first_due(first.store.engine) == 0


def test_a_full_outbox_refuses_what_would_add_to_it_and_nothing_else(
    ranges: Ranges, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = ranges.members
    monkeypatch.setattr(limits, "OUTGOING_MAX", 2)
    ranges.send(first, THERE, THERE)
    for write in (EnqueueMessage(THERE, b"m"), EnqueueUpdate(Increment(THERE))):
        with pytest.raises(OutboxFull, match="nothing happened"):
            ranges.commit(first, Put(b"a", b"1"), write)
    assert first.outcome(Get(b"a")).value is None
    ranges.commit(first, EnqueueMessage(HERE, b"m"), EnqueueMessage(THERE, b"m", None, 1 << 62 | 9))
    first.step()
    ranges.deliver_all()
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
    assert first.outcome(DropHandedOver(False, (position, position))) == 1
    assert first.outcome(DropHandedOver(False, (position,))) == 0
    assert first.counters().handed == 1


def test_a_batch_takes_one_log_entry_at_each_end(ranges: Ranges) -> None:
    first, second = ranges.members
    ranges.send(first, *([THERE] * limits.HANDED_OVER_MAX))
    before = [member.store.group._index for member in ranges.members]
    first.step()
    ranges.deliver_all()
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
        lambda after: [each.id for each in first.outcome(ListDeadLetters(9, 1 << 20, after))],
        lambda after: [
            each.id for each in first.outcome(ListScheduled(b"", None, 9, 1 << 20, after)).entries
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
        ranges.deliver_all()
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
        ranges.deliver_all()
    ranges.send(first, HERE)
    assert first.counters().outgoing == 0
    ranges.check_end()


# --- the receiving end ----------------------------------------------------------------------------


def test_a_batch_is_taken_once_and_answered_again(ranges: Ranges) -> None:
    _, second = ranges.members
    known = batch(message(THERE, 5), message(THERE, 6))
    marked = [MarkedSpan(b"n", None, known.messages[-1][0])]
    assert second.outcome(known) == marked
    assert second.outcome(known) == marked
    assert second.counters().received == 2


def test_a_batch_of_which_some_is_known_is_refused_with_the_mark(ranges: Ranges) -> None:
    _, second = ranges.members
    marked = second.outcome(batch(message(THERE, 5)))
    assert second.outcome(batch(message(THERE, 5), message(THERE, 6))) == marked
    assert second.counters().received == 1
    second.outcome(batch(message(THERE, 6)))
    assert second.counters().received == 2


def test_one_who_waits_gets_the_messages_of_two_ranges_in_order(ranges: Ranges) -> None:
    _, second = ranges.members
    store = second.store
    second.outcome(batch(message(THERE, 6)))
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
    second.outcome(batch(message(THERE, 5)))
    other = HandOver(Channel(7, False, 1), b"n", None, (message(THERE, 4),))
    second.outcome(other)
    update = Executable(Increment(THERE), bytes(16), b"")
    for position in (message(THERE, 3)[0],) * 2:
        second.outcome(HandOver(Channel(7, True, 0), b"n", None, (), ((position, update),)))
    assert (second.counters().delivered, second.counters().executed) == (2, 1)


@pytest.mark.parametrize("start", [b"", b"m"])
def test_a_batch_for_other_keys_than_those_of_the_range_is_refused(
    ranges: Ranges, start: bytes
) -> None:
    _, second = ranges.members
    with pytest.raises(Exception, match="other ranges"):
        second.outcome(batch(message(THERE, 5), start=start))
    assert second.counters().received == 0


def test_a_batch_is_checked(ranges: Ranges) -> None:
    _, second = ranges.members
    with pytest.raises(Invalid, match="do not rise"):
        second.outcome(batch(message(THERE, 6), message(THERE, 5)))
    with pytest.raises(Invalid, match="not in its span"):
        second.outcome(batch(message(HERE, 5)))
    for update in (DeleteRange(b"m", b"o"), DeleteRange(b"o", None), Increment(HERE)):
        entries = ((message(THERE, 5)[0], Executable(update, bytes(16), b"")),)
        with pytest.raises(Invalid, match="not in its span"):
            second.outcome(HandOver(Channel(7, True, 0), b"n", b"p", (), entries))
    assert second.counters().received == 0


def test_a_message_is_never_received_before_it_was_sent(ranges: Ranges) -> None:
    _, second = ranges.members
    with pytest.raises(Unavailable, match="clock"):
        second.outcome(batch(message(THERE, ranges.now() + (1 << 30))))
    assert second.counters().received == 0


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
        ranges.deliver_all()
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
        ranges.deliver_all()
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
        ranges.deliver_all()
    assert reached[:4] == [2, 3, 2, 3]
    for _ in range(10):
        first.step()
        ranges.deliver_all()
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
        ranges.deliver_all()
        first.store.seconds += 0.01
    assert (second.counters().received, third.counters().received) == (0, 10)
    first.store.seconds += sending.ANSWER_SECONDS + 1
    for _ in range(60):
        first.step()
        ranges.deliver_all()
    assert second.counters().received == 20
    ranges.check_end()
    ranges.close()


def test_entries_that_were_not_kept_are_read_once_more_for_all_ranges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "KEPT", 8)
    monkeypatch.setattr("postroom.messaging.handover.sending.HANDED_OVER_MAX", 2)
    read: list[bytes] = []
    recipients_of = sending.SendingService._recipients

    def counted(self: sending.SendingService, entry: Any) -> Any:
        read.append(entry.key)
        return recipients_of(self, entry)

    monkeypatch.setattr(sending.SendingService, "_recipients", counted)
    ranges = Ranges(b"d", b"k", b"p")
    first, *others = ranges.members
    for _ in range(100):
        ranges.send(first, b"db", b"kg", b"pd")
    for _ in range(300):
        first.step()
        ranges.deliver_all()
    assert [each.counters().received for each in others] == [100] * 3
    assert len(read) <= 2.2 * 300
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
