"""Updates whose keys are in other ranges: each part is carried out once, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from postroom import limits
from postroom.kv import keys
from postroom.messaging import due as times
from postroom.messaging.handover import sending
from postroom.messaging.handover.channels import Channel
from postroom.messaging.handover.requests import HandOver
from postroom.messaging.requests import (
    AwaitQuiet,
    EnqueueUpdate,
    Executable,
    ListDeadLetters,
    ReplayDeadLetters,
)
from postroom.ranges.accounting import summed_prefixes
from postroom.ranges.bounds import WrongRange
from postroom.ranges.requests import Accounting, DeleteRange, Get, Increment, Put
from tests.messaging.handover.several_ranges import Ranges

HERE, THERE = b"db", b"pd"
"""A key of the first range, and one of the second."""


def test_updates_are_carried_out_where_their_keys_are(ranges: Ranges) -> None:
    first, second = ranges.members
    ranges.add(first, HERE, THERE, THERE)
    assert first.counters().executed == 1
    first.step()
    ranges.deliver_all()
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
    ranges.deliver_all()
    first.step()
    (letter,) = second.outcome(ListDeadLetters(10))
    assert int.from_bytes(letter.id[:8], "big") == second.range_id
    assert int.from_bytes(letter.id[16:24], "big") == first.range_id
    with pytest.raises(WrongRange):
        ranges.commit(first, ReplayDeadLetters([letter.id]))
    ranges.commit(second, Put(THERE, (5).to_bytes(8, "big"), True))
    ranges.commit(second, ReplayDeadLetters([letter.id]))
    ranges.pass_time(1.0)
    assert second.outcome(Get(THERE)).value == (6).to_bytes(8, "big")


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
        cut_at_metrics.deliver_all()
    assert (first.counters().enqueued, first.counters().handed) == (2, 2)
    assert (first.counters().received, first.counters().executed) == (2, 2)
    assert (second.counters().enqueued, second.counters().executed) == (2, 2)
    for key in (b"a/a/written", b"a/z/written"):
        assert cut_at_metrics.owner(key).outcome(Get(key)).value is None
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
    cut_at_metrics.deliver_all()
    first.step()
    assert (first.counters().outgoing_updates, first.counters().handed) == (0, 1)
    assert (first.counters().executed, second.counters().executed) == (1, 1)
    cut_at_metrics.check_end()


def test_an_update_stays_while_it_is_found_again_for_one_of_its_ranges(
    cut_at_metrics: Ranges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "KEPT", 1)
    first, second = cut_at_metrics.members
    for _ in range(3):
        cut_at_metrics.post(first, b"a/n/1")
    for _ in range(6):
        first.step()
        cut_at_metrics.deliver_to(1)
    assert (first.counters().executed, second.counters().executed) == (3, 0)
    assert first.counters().outgoing_updates == 3
    first.store.seconds += sending.ANSWER_SECONDS + 1
    for _ in range(9):
        first.step()
        cut_at_metrics.deliver_all()
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
    cut_at_metrics.deliver_all()  # the answer from before
    first.step()
    assert first.counters().outgoing_updates == 2
    first.store.seconds += sending.ANSWER_SECONDS + 1
    for _ in range(9):
        first.step()
        cut_at_metrics.deliver_all()
    cut_at_metrics.check_end()


def test_two_parts_of_an_update_may_die_in_one_range(ranges: Ranges) -> None:
    _, second = ranges.members
    ranges.commit(second, EnqueueUpdate(Accounting(b"p/q", {"n": limits.INTEGER_MAX})))
    position = keys.u64(5) * 2 + keys.u64(7) + keys.u32(1)
    for span in ((b"n", b"p/a"), (b"p/a", None)):
        part = Executable(Accounting(b"p/q", {"n": 1}, span), bytes(16), b"")
        entries = ((position, part),)
        second.outcome(HandOver(Channel(7, True, 0), *span, (), entries, (position,)))
    assert second.counters().dead_letters == len(second.outcome(ListDeadLetters(10))) == 2


def test_a_part_that_cannot_succeed_dies_alone_and_is_replayed_alone(
    cut_at_metrics: Ranges,
) -> None:
    first, second = cut_at_metrics.members
    full = Accounting(b"a/n", {"n": limits.INTEGER_MAX}, (b"a/n", None))
    cut_at_metrics.commit(second, EnqueueUpdate(full))
    cut_at_metrics.post(first, b"a/n/1")
    first.step()
    cut_at_metrics.deliver_all()
    first.step()
    (letter,) = second.outcome(ListDeadLetters(10))
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
    cut_at_metrics.deliver_all()
    assert second.counters().pending_updates == 3
    cut_at_metrics.pass_time(1.0)
    assert second.counters().executed == 2
    assert second.outcome(Get(b"b/written")).value == b"1"


def test_a_range_is_not_quiet_while_received_updates_wait(
    ranges: Ranges, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ranges.members
    for number in range(100):
        ranges.commit(first, EnqueueUpdate(Put(b"p%03d" % number, b"1")))
    first.step()
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 64)  # it leaves some for later
    ranges.deliver_all()
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
        cut_at_metrics.deliver_all()  # the first waits here while the second is outgoing
        cut_at_metrics.pass_time(0.01)
    for _ in range(4):
        first.step()
        cut_at_metrics.deliver_all()
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
        cut_at_metrics.deliver_all()
    assert first.outcome(Get(b"a/a/written")).value == b"1"


def test_an_update_that_comes_back_to_its_range_is_not_overtaken(cut_at_metrics: Ranges) -> None:
    first, _ = cut_at_metrics.members
    cut_at_metrics.commit(first, EnqueueUpdate(Put(b"a/a/written", b"1"), times.after(100)))
    cut_at_metrics.commit(first, EnqueueUpdate(DeleteRange(b"a", b"b")))
    cut_at_metrics.pass_time(0.0)
    first.step()
    first.store.seconds += 1.0  # the other one is due, and waits
    cut_at_metrics.deliver_all()
    first.step()
    assert (first.counters().outgoing_updates, first.counters().pending_updates) == (0, 2)
    cut_at_metrics.pass_time(0.01)
    assert first.outcome(Get(b"a/a/written")).value == b"1"


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
        ranges.deliver_all()
    left = {
        number: ranges.owner(b"a%d" % number).outcome(Get(b"a%d" % number)).value
        for number in range(8)
    }
    assert {number for number, value in left.items() if value is not None} == {7}
    assert left[7] == b"new"


def test_a_received_update_waits_behind_those_that_wait(ranges: Ranges) -> None:
    first, second = ranges.members
    ranges.commit(second, EnqueueUpdate(Increment(THERE), 1 << 62 | 1000))
    ranges.add(first, THERE)
    first.step()
    ranges.deliver_all()
    assert (second.counters().received, second.counters().pending_updates) == (1, 2)
    ranges.pass_time(2.0)
    assert second.counters().executed == 2
