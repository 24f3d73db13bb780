"""Ranges other than the root learn of queues by their own logs, as their nodes hear of them."""

from __future__ import annotations

import itertools
from typing import Any, Final

import pytest

from postroom.errors import Invalid, NoSuchQueue, Unavailable
from postroom.kv import keys
from postroom.kv.engine import WriteSet
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection, StoredQueueMessage
from postroom.messaging.queues.definition_requests import (
    CreateQueue,
    DropQueue,
    QueueDefinition,
    QueueSettings,
    SetSchedule,
    UpdateQueue,
)
from postroom.messaging.queues.learning import learned_version
from postroom.messaging.queues.maintenance import AdvanceQueues
from postroom.messaging.queues.queries import ReadQueueStats
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.ranges.descriptor import RangeDescriptor, descriptor_key, encode_descriptor
from postroom.ranges.requests import Committed, CommitTransaction
from tests.messaging.one_range import OneRange

Q: Final = "work"
RANGE_ID: Final = 2
HOMES: Final = b"m", None
"""The keys of the range."""

_numbers = itertools.count(1)


class Part(OneRange):
    """A range behind the root, on a node that hears of queues when a test says so."""

    def __init__(self, engine: MemoryEngine | None = None) -> None:
        if engine is None:
            engine = MemoryEngine(MemoryDisk())
            descriptor = RangeDescriptor(RANGE_ID, b"m", None)
            record = {descriptor_key(RANGE_ID): encode_descriptor(descriptor)}
            engine.write(record, sync=True)
        super().__init__(engine=engine, range_id=RANGE_ID)

    def on_a_node_that_has_heard_of(self, *definitions: QueueDefinition, version: int) -> Part:
        """Return the next leaseholder, on a node whose root has applied so much."""
        self.replica.on_leadership(False, 3)
        self.settle()
        engine, root = MemoryEngine(MemoryDisk()), keys.range_prefix(1)
        own = [pair for pair in self.engine.iterate(b"\x01", b"\x07") if pair[0][:9] != root]
        engine.write(dict(own), sync=True)
        made = Part(engine)
        for number in range(version):
            made.hear(*[(each.name, each) for each in definitions][number])
        made.lead()
        return made

    def result(self, request: Any) -> Any:
        [(answer, error)] = self.ask(request).answers
        if error is not None:
            raise error
        return answer

    def commit(self, *writes: Any) -> Committed:
        id_ = b"a client" + next(_numbers).to_bytes(8, "big")
        now = self.clock.reading()
        committed: Committed = self.result(
            CommitTransaction(id_, now, 60.0, 0, b"m", [], [], list(writes))
        )
        return committed

    def enqueue(self, *ids: bytes) -> None:
        self.commit(*(EnqueueInQueue(Q, id_, "", id_, b"payload") for id_ in ids))

    def advance(self) -> None:
        for _ in range(5):
            self.result(AdvanceQueues(100))
            self.pass_time(1.0)

    def claim(self, number: int = 10) -> list[StoredQueueMessage]:
        asked = self.ask(claim_request(number))
        if not asked.answers:
            self.advance()
        [(claimed, error)] = asked.answers
        if error is not None:
            raise error
        found: list[StoredQueueMessage] = claimed.messages
        return found

    def bodies(self) -> list[bytes]:
        """Return the homes of the messages."""
        found = [raw for raw, _ in self.engine.iterate(keys.DATA, keys.DATA_END)]
        suffixes = [(raw, raw.index(keys.END_OF_KEY, 1) + 2) for raw in found]
        return [keys.user_key(raw) for raw, end in suffixes if raw[end:][:1] == keys.QUEUE_BODY]


def claim_request(messages_max: int) -> ClaimQueue:
    consumer = b"a client" + next(_numbers).to_bytes(8, "big")
    return ClaimQueue(Q, consumer, messages_max, ClaimSelection(), homes=HOMES)


def queue(number: int, *, paused: bool = False, **settings: Any) -> QueueDefinition:
    return QueueDefinition(Q, number, number, QueueSettings(**settings), paused)


def part(*definitions: QueueDefinition) -> Part:
    made = Part()
    for each in definitions:
        made.hear(each.name, each)
    made.advance()
    return made


def test_a_range_serves_a_queue_of_which_it_has_learned() -> None:
    one = Part()
    with pytest.raises(Invalid, match="no queue"):
        one.enqueue(b"x")
    one.hear(Q, queue(1))
    with pytest.raises(Unavailable, match="yet to learn"):
        one.enqueue(b"x")
    one.advance()
    one.enqueue(b"x", b"y")
    assert [each.id for each in one.claim()] == [b"x", b"y"]
    assert learned_version(one.engine, RANGE_ID) == 1


def test_the_next_leaseholder_goes_on_with_what_its_node_has_heard() -> None:
    one = part(queue(1))
    one.enqueue(b"x")
    one.lead()
    assert [each.id for each in one.claim()] == [b"x"]


def test_a_paused_queue_fires_nothing_once_the_range_has_learned_of_it() -> None:
    one = part(queue(1))
    one.enqueue(b"x")
    one.hear(Q, queue(1, paused=True))
    one.advance()
    assert one.claim() == []
    one.hear(Q, queue(1))
    one.advance()
    assert [each.id for each in one.claim()] == [b"x"]


def test_a_range_empties_its_part_of_a_queue_that_was_dropped() -> None:
    one = part(queue(1))
    one.enqueue(b"x", b"y")
    one.hear(Q, None)
    one.advance()
    assert one.bodies() == []
    with pytest.raises(Invalid, match="no queue"):
        one.enqueue(b"z")


def test_a_claim_that_waits_is_told_that_its_queue_was_dropped() -> None:
    one = part(queue(1))
    consumer = b"a client" + bytes(8)
    asked = one.ask(ClaimQueue(Q, consumer, 1, ClaimSelection(), wait=True, homes=HOMES))
    one.hear(Q, None)
    one.advance()
    [(_, error)] = asked.answers
    assert "was dropped" in str(error)


def test_a_new_leaseholder_empties_what_was_dropped_before_it() -> None:
    one = part(queue(1))
    one.enqueue(b"x", b"y")
    one.hear(Q, None)
    one.lead()
    one.advance()
    assert one.bodies() == []


def test_a_queue_that_is_made_anew_has_no_message_of_the_one_before() -> None:
    one = part(queue(1))
    one.enqueue(b"old")
    one.hear(Q, None)
    one.hear(Q, queue(2))
    one.advance()
    one.enqueue(b"new")
    one.advance()
    assert one.bodies() == [b"new"]
    assert [each.id for each in one.claim()] == [b"new"]


def test_a_node_that_lags_serves_no_queue_and_deletes_none_that_it_has_not_heard_of() -> None:
    """The queue with the number 1 was dropped, and made anew with the number 2."""
    one = part(queue(1))
    one.hear(Q, queue(2))
    one.advance()
    one.enqueue(b"x")
    lagging = one.on_a_node_that_has_heard_of(queue(1), version=1)
    waits = lagging.ask(claim_request(1))
    for _ in range(3):
        with pytest.raises(Unavailable, match="yet to learn"):
            lagging.enqueue(b"y")
        lagging.advance()
    assert (lagging.bodies(), waits.answers) == ([b"x"], [])
    lagging.hear(Q, queue(2))
    lagging.advance()
    lagging.enqueue(b"y")
    [(claimed, _)] = waits.answers
    assert [each.id for each in (*claimed.messages, *lagging.claim())] == [b"x", b"y"]


def test_a_read_waits_until_the_range_has_learned_of_a_queue() -> None:
    one = Part()
    one.hear(Q, queue(1))
    waiting = [one.ask(ReadQueueStats(Q)) for _ in range(3)]
    waiting.append(one.ask(ReadQueueStats("another")))
    assert [each.answers for each in waiting] == [[]] * 4
    one.advance()
    *found, (_, error) = [each.answers[0] for each in waiting]
    assert [stats.ready for stats, _ in found] == [0] * 3
    assert isinstance(error, NoSuchQueue)


def test_a_change_that_came_for_a_queue_waits_until_the_range_knows_what_became_of_it() -> None:
    one = part(queue(1))
    stands = one.messaging.queues._directory.stands
    assert stands(Q, 1)
    with pytest.raises(Unavailable, match="yet to learn"):
        stands(Q, 2)
    one.hear(Q, queue(2))
    with pytest.raises(Unavailable, match="yet to learn"):
        stands(Q, 2)
    one.advance()
    assert (stands(Q, 1), stands(Q, 2)) == (False, True)


def test_a_leaseholder_whose_node_has_heard_of_more_learns_before_it_serves() -> None:
    one = part(queue(1))
    one.enqueue(b"old")
    ahead = one.on_a_node_that_has_heard_of(queue(1), queue(2), version=2)
    with pytest.raises(Unavailable, match="yet to learn"):
        ahead.enqueue(b"new")
    ahead.advance()
    ahead.enqueue(b"new")
    ahead.advance()
    assert ahead.bodies() == [b"new"]
    assert learned_version(ahead.engine, RANGE_ID) == 2


def test_changes_of_many_queues_are_read_all_at_once() -> None:
    """The node has missed changes, as it has got a snapshot of the root."""
    one = part(queue(1))
    one.enqueue(b"x")
    missed, one.news._observed = one.news._observed, []
    assert missed == []
    observe, one.news.observe = one.news.observe, lambda _: None  # type: ignore[method-assign]
    one.hear(Q, None)
    one.news.observe = observe  # type: ignore[method-assign]
    one.hear("other", QueueDefinition("other", 2, 2, QueueSettings()))
    one.advance()
    assert one.bodies() == []
    assert one.news.by_name.keys() == {"other"}


def test_a_queue_does_not_count_as_dropped_while_a_snapshot_of_the_root_is_put_in_place() -> None:
    """The number of the queue is in place already, and its definition is not."""
    one = part(queue(1))
    one.enqueue(b"x")
    one.news._is_whole = lambda: False
    one.hear("another", None)
    one.hear(Q, None)
    one.news._is_read = False
    waits = one.ask(ReadQueueStats(Q))
    one.lead()
    one.advance()
    assert one.bodies() == [b"x"]
    with pytest.raises(Unavailable, match="yet to learn"):
        one.enqueue(b"y")
    one.news._is_whole = lambda: True
    one.hear(Q, queue(1))
    one.advance()
    one.enqueue(b"y")
    assert (one.bodies(), len(waits.answers)) == ([b"x", b"y"], 1)


def test_a_change_is_not_missed_that_is_written_after_a_first_range_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was observed before."""
    one, pending = Part(), list[WriteSet]()
    one.news._is_read = False
    with monkeypatch.context() as patch:
        patch.setattr(one.engine, "write", lambda writes, **_: pending.append(writes))
        patch.setattr(one.news, "written", lambda: None)
        one.hear(Q, queue(1))
        one.news.listen(RANGE_ID, one.messaging.queues)
    for writes in pending:
        one.engine.write(writes, sync=True)
    one.news.written()
    assert one.news.by_name.keys() == {Q}


@pytest.mark.parametrize(
    "write",
    [
        CreateQueue(Q, QueueSettings()), UpdateQueue(Q, {"paused": True}), DropQueue(Q),
        SetSchedule(Q, "daily", "0 0 * * *"),
    ],
)  # fmt: skip
def test_a_range_that_is_not_the_root_changes_no_definition(write: Any) -> None:
    one = part(queue(1))
    with pytest.raises(Invalid, match="transaction of its own"):
        one.commit(write)
