"""The usual way makes byte for byte what the general way makes, or leaves the batch to it.

Two ranges are asked the same. One of them makes all proposals in the general way. After each turn
their proposals, their answers, their stored states and their memories are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom import limits
from postroom.kv.clock import from_milliseconds, from_seconds
from postroom.messaging import requests as messaging
from postroom.messaging.claims import Claims
from postroom.messaging.queues.claim_requests import ClaimSelection
from postroom.messaging.queues.consumers import WaitingClaim
from postroom.messaging.queues.maintenance import AdvanceQueues
from postroom.messaging.queues.requests import Acknowledge, Attempt, EnqueueInQueue, KeepResult
from postroom.messaging.requests import (
    DeliverDue,
    EnqueueMessage,
    EnqueueUpdate,
    Peek,
    ReapMessages,
    ReapQueue,
)
from postroom.raft.proposals import ProposalOutcome
from postroom.ranges.requests import (
    Accounting,
    CollectGarbage,
    CommitTransaction,
    ConditionalPut,
    Delete,
    DeleteRange,
    GetForUpdate,
    Increment,
    Put,
    ReleaseLocks,
    ScanChanges,
)
from tests.messaging import queue_steps
from tests.messaging.one_range import EPOCH_MILLISECONDS, Asked, OneRange
from tests.messaging.queue_steps import Claims as QueueClaims

EPOCH: Final = from_milliseconds(EPOCH_MILLISECONDS)
KEYS: Final = (b"a", b"b", b"\x00", b"c/1")
INBOXES: Final = (b"a", b"in")
INTEGER_MAX: Final = 2**63 - 1
Step: TypeAlias = tuple[Any, ...]


class Both:
    """The two ranges, which are asked the same.

    Attributes:
        usual: how many proposals were made in the usual way.
    """

    def __init__(self) -> None:
        self.general, self.other = OneRange(is_general_only=True), OneRange(is_general_only=False)
        self.usual = self.numbers = 0
        self._asked: list[tuple[Asked, Asked]] = []
        self.arrivals: list[list[dict[bytes, bytes]]] = []
        for each in (self.general, self.other):
            each.group.holds = True
            self.arrivals.append(_recorded(each.messaging.inboxes.claims))
        way = self.other.replica.usual_way
        assert way is not None
        propose = way.propose

        def counted(*args: Any) -> Any:
            proposal = propose(*args)
            self.usual += proposal is not None
            return proposal

        way.propose = counted  # type: ignore[method-assign]  # to count
        self.claims = QueueClaims()
        self.commit(*queue_steps.QUEUES)
        self.turns()

    def submit(self, request: Any, *, urgent: bool = True, cancelled: bool = False) -> Asked:
        """Ask both; return the answers of the one with the usual way."""
        asked = Asked(request, urgent=urgent), Asked(request, urgent=urgent)
        for one_range, each in zip((self.general, self.other), asked, strict=True):
            one_range.replica.submit(each)
            if cancelled:
                one_range.replica.cancel(each)
        self._asked.append(asked)
        return asked[1]

    def commit(self, *writes: Any, **fields: Any) -> Asked:
        """Commit a transaction with these writes."""
        return self.submit(self.transaction(*writes, **fields))

    def transaction(self, *writes: Any, **fields: Any) -> CommitTransaction[Any]:
        """Return a new transaction with these writes."""
        self.numbers += 1
        made: CommitTransaction[Any] = CommitTransaction(
            b"a client" + self.numbers.to_bytes(8, "big"), self.now(), 60.0, 0, b"k", [], [],
            list(writes),
        )  # fmt: skip
        return msgspec.structs.replace(made, **fields)

    def now(self) -> int:
        """Return a timestamp of both clocks."""
        return EPOCH + from_seconds(self.general.seconds)

    def pass_time(self, seconds: float) -> None:
        """Let time pass in both."""
        for each in (self.general, self.other):
            each.seconds += seconds
            each.replica.release_expired()

    def lead_again(self) -> None:
        """Begin a new lease in both."""
        self.turns()
        for each in (self.general, self.other):
            each.group.holds = False
            each.lead()
            each.group.holds = True
        self.compare()

    def turns(self) -> None:
        """Take turns until nothing wants one, and compare after each."""
        for _ in range(1000):
            for each in (self.general, self.other):
                each.replica.turn()
            self.compare()
            if self.general.group.proposed:
                for each in (self.general, self.other):
                    each.group.end(ProposalOutcome.APPLIED)
                self.compare()
            elif not self.general.replica.wants_turn():
                return
        raise AssertionError("the turns never end")

    def compare(self) -> None:
        """Compare everything that can be seen of both."""
        assert self.other.replica.usual_way is not None, "the usual way failed"
        for each in (self.general.replica, self.other.replica):
            assert not each.reads.only_commits or each.has_only_commits()
        assert self.arrivals[0] == self.arrivals[1]
        one, other = (_seen(each) for each in (self.general, self.other))
        assert one == other
        for first, second in self._asked:
            assert _told(first) == _told(second)
        assert one[-1] == other[-1]


def _recorded(claims: Claims) -> list[dict[bytes, bytes]]:
    """Return a list to which all messages are added that arrive with a proposal."""
    arriving, calls = claims.arriving, list[dict[bytes, bytes]]()

    def recorded(first: dict[bytes, bytes]) -> None:
        calls.append(first)
        arriving(first)

    claims.arriving = recorded  # type: ignore[method-assign]  # to record
    return calls


def _seen(one_range: OneRange) -> tuple[Any, ...]:
    replica, messages = one_range.replica, one_range.messaging
    proposals = [(each.packed, each.last_commit) for each, _ in one_range.group.proposed]
    claims = messages.inboxes.claims
    return (
        proposals, dict(one_range.engine.iterate(b"", b"\xff")), replica.last_commit,
        one_range.clock.last(), messages.conservation.applied, repr(claims._inboxes),
        repr(claims._holders), claims._found_bytes, repr(vars(claims.ahead)),
        replica.usual_parts.committer.latest, replica.sizes(), replica.wants_turn(),
        replica.feed.kept_bytes, sorted(map(_token, replica.waiting_for)),
        queue_steps.seen(messages.queues),
    )  # fmt: skip


def _told(asked: Asked) -> list[tuple[bytes, str]]:
    """Return the answers as they are sent; headers are packed in them, and have no text."""
    return [(msgspec.msgpack.encode(answer), repr(error)) for answer, error in asked.answers]


def _token(token: object) -> str:
    return "a claim" if isinstance(token, WaitingClaim) else repr(token)


# --- random batches

keys_of = st.sampled_from(KEYS)
packed_integers = st.integers(-3, 3).map(lambda number: number.to_bytes(8, "big", signed=True))
values = st.binary(max_size=3) | st.just(b"x" * 40) | packed_integers
amounts = st.integers(-3, 3) | st.sampled_from((INTEGER_MAX, -INTEGER_MAX - 1))
headers = st.none() | st.just({"a": 1}) | st.just({"deep": {}})
puts = st.builds(Put, keys_of, values) | st.builds(Put, keys_of, packed_integers, st.just(True))
sends = st.builds(EnqueueMessage, st.sampled_from(INBOXES), values, headers)
increments = st.builds(Increment, keys_of, amounts, st.booleans())
deferred = st.builds(EnqueueUpdate, increments)
usual_writes = puts | st.builds(Delete, keys_of) | sends | deferred | queue_steps.enqueues
later = st.integers(1, 2).map(lambda seconds: EPOCH + from_seconds(seconds))
unusual_writes = (
    increments
    | st.builds(ConditionalPut, keys_of, values, st.none())
    | st.builds(DeleteRange, keys_of, st.none())
    | st.builds(EnqueueMessage, st.sampled_from(INBOXES), values, headers, later)
    | st.builds(EnqueueUpdate, st.builds(Put, keys_of, values))
    | st.builds(EnqueueUpdate, st.builds(Accounting, keys_of, st.just({"n": 1})))
    | st.builds(Put, keys_of, st.just(b"no integer"), st.just(True))
    | queue_steps.unusual_enqueues
)
writes = st.integers(0, 49).flatmap(lambda n: unusual_writes if n == 49 else usual_writes)
commits = st.tuples(
    st.just("commit"), st.lists(writes, max_size=4), st.lists(keys_of, max_size=2),
    st.sampled_from((0, 0, 0, 1, 2)), st.integers(0, 5),
)  # fmt: skip
unusual_steps = st.sampled_from((
    "again", "watch", "lock", "unlock", "time", "upkeep", "lead", "spans", "cancelled", "peek",
    "later message", "later update", "old", "late", "no integer", "packed", "twice", "made up",
    "result",
)).map(lambda name: (name,))  # fmt: skip
reaps = st.tuples(st.just("reap"), st.sampled_from(INBOXES), st.integers(1, 3), st.booleans())


def _step(number: int) -> st.SearchStrategy[Step]:
    if number < 12:
        return st.just(("turns",))
    if number < 17:
        return reaps
    if number < 24:
        return queue_steps.queue_steps
    return unusual_steps if number > 36 else commits


steps = st.integers(0, 39).flatmap(_step)


def play_all(both: Both, history: list[Step]) -> None:
    """Play a history, and compare both ranges in each turn."""
    reaped: list[tuple[bytes, bytes, Asked]] = []
    for step in history:
        _play(both, step, reaped)
    both.turns()


def _play(both: Both, step: Step, reaped: list[tuple[bytes, bytes, Asked]]) -> None:
    match step:
        case ("commit", list() as asked, read, age, reaps):
            made = both.transaction(*asked)
            if reaps < 4 and reaped and reaped[0][2].answers:
                made = _reaping(both, asked, *reaped.pop(0))
            at = both.now() - from_seconds(age) if read else 0
            both.submit(msgspec.structs.replace(made, reads=read, read_timestamp=at))
        case ("reap", key, number, wait):
            both.numbers += 1
            transaction_id = b"a client" + both.numbers.to_bytes(8, "big")
            request = ReapQueue(key, number, 10_000, transaction_id, 5.0, wait)
            reaped.append((key, transaction_id, both.submit(request)))
        case ("claim", queue, *what):
            both.claims.asked(queue, both.submit(both.claims.request(queue, *what)))
        case ("settle", how):
            both.commit(Put(b"a", b"settled"), *both.claims.settle(how))
        case ("advance", number):
            both.submit(AdvanceQueues(number), urgent=False)
        case ("turns",):
            both.turns()
        case (name,):
            _do_unusual(both, name)


def _reaping(
    both: Both, asked: list[Any], key: bytes, transaction_id: bytes, answer: Asked
) -> CommitTransaction[Any]:
    found = answer.answers[0][0]
    ids = [id_ for id_, _ in found.messages] if found is not None else []
    reap = [ReapMessages(key, ids, True)] if ids else []
    return both.transaction(*reap, *asked, transaction_id=transaction_id)


def _do_unusual(both: Both, name: str) -> None:
    number = both.numbers.to_bytes(8, "big")
    actions: dict[str, Callable[[], object]] = {
        "idle": lambda: [
            queue_steps.let_idle(each.messaging.queues) for each in (both.general, both.other)
        ],
        "again": lambda: both.commit(Put(b"a", b"again"), transaction_id=b"a client" + number),
        "watch": lambda: both.submit(ScanChanges(b"", None, both.other.replica.last_commit)),
        "lock": lambda: both.submit(GetForUpdate(b"a", both.now(), b"a locker" + number, 5.0)),
        "unlock": lambda: both.submit(ReleaseLocks(b"a locker" + number)),
        "time": lambda: both.pass_time(1.5),
        "upkeep": lambda: [
            both.submit(DeliverDue(10), urgent=False),
            both.submit(messaging.ExecuteDue(10), urgent=False),
            both.submit(CollectGarbage(both.now() - from_seconds(1), 100), urgent=False),
        ],
        "packed": lambda: _increment_bytes(both),
        "no integer": lambda: both.commit(Put(b"a", b"no integer", integer=True)),
        "lead": lambda: _commit_again_after_a_lease(both),
        "spans": lambda: both.commit(
            Put(b"b", b"1"), spans=[(b"", None)], read_timestamp=both.now()
        ),
        "cancelled": lambda: both.submit(both.transaction(Put(b"a", b"no")), cancelled=True),
        "peek": lambda: both.submit(Peek(b"in", 5)),
        "later message": lambda: both.commit(
            EnqueueMessage(b"in", b"late", None, both.now() + from_seconds(1))
        ),
        "later update": lambda: both.commit(
            EnqueueUpdate(Increment(b"a"), both.now() + from_seconds(1))
        ),
        "late": lambda: _send_beside_a_late_one(both),
        "twice": lambda: _acknowledge_twice(both),
        "result": lambda: _acknowledge_with_a_result(both),
        "made up": lambda: _make_up_an_id_that_is_there(both),
        "old": lambda: both.commit(Put(b"a", b"old"), began=both.now() - from_seconds(70)),
    }
    actions[name]()


def _send_beside_a_late_one(both: Both) -> None:
    """Send a message while an older one is due, and was not delivered."""
    both.commit(EnqueueMessage(b"in", b"late", None, both.now() + from_seconds(1)))
    both.turns()
    both.pass_time(1.5)
    both.commit(EnqueueMessage(b"in", b"new"))
    both.turns()


def _acknowledge_twice(both: Both) -> None:
    """Acknowledge messages twice in a turn: all that a claim holds, then a part."""
    for part in (2, 1):
        ids = [b"%d of %d" % (number, both.numbers) for number in range(2)]
        both.commit(*(EnqueueInQueue("q", id_, "twice", id_, b"x") for id_ in ids))
        selection = ClaimSelection(kinds=("twice",))
        asked = both.submit(both.claims.request("q", 2, True, 1, selection))
        both.turns()
        found = asked.answers[0][0].messages if asked.answers else []
        attempts = [Attempt(*each.locator, each.epoch) for each in found]
        for _ in range(2):
            both.commit(Acknowledge("q", attempts[:part]))
        both.turns()


def _acknowledge_with_a_result(both: Both) -> None:
    """Keep a result with an acknowledgement, and without one."""
    id_ = b"result %d" % both.numbers
    both.commit(EnqueueInQueue("q", id_, "result", id_, b"x"))
    asked = both.submit(both.claims.request("q", 1, True, 1, ClaimSelection(kinds=("result",))))
    both.turns()
    for each in asked.answers[0][0].messages if asked.answers else []:
        attempt = Attempt(*each.locator, each.epoch)
        both.commit(KeepResult("q", attempt, 1.0, b"first"))
        both.commit(KeepResult("q", attempt, 2.0, b"1"), Acknowledge("q", [attempt]))
    both.turns()


def _make_up_an_id_that_is_there(both: Both) -> None:
    """Enqueue made-up ids, then an id above them, and that one again as made up."""
    family = b"%016d" % both.numbers
    for number, is_unique in ((1, True), (2, True), (4, False), (4, True), (3, True)):
        id_ = family + b"%d" % number
        both.commit(EnqueueInQueue("q", id_, "", id_, b"x", is_unique=is_unique))
        both.turns()


def _increment_bytes(both: Both) -> None:
    """Increment eight bytes that were put: an increment of a packed value refuses them."""
    both.commit(Put(b"a", bytes(8)))
    both.turns()
    both.commit(EnqueueUpdate(Increment(b"a", 1, packed=True)), EnqueueUpdate(Increment(b"a", 1)))
    both.turns()


def _commit_again_after_a_lease(both: Both) -> None:
    """Commit a transaction again that the new leaseholder does not remember."""
    made = both.transaction(EnqueueMessage(b"in", b"once"))
    both.submit(made)
    both.lead_again()
    both.submit(made)
    both.turns()


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(steps, min_size=40, max_size=80))
def test_both_ways_make_the_same_proposals(history: list[Step]) -> None:
    play_all(Both(), history)


def test_a_deferred_put_is_left_to_the_general_way() -> None:
    both = Both()
    before = both.usual
    both.commit(EnqueueUpdate(Put(b"a", b"later")))
    both.turns()
    assert both.usual == before


def test_a_long_commit_that_conflicts_is_left_to_the_general_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its check takes a turn of its own there, and tells the conflict later."""
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", SMALL["TURN_STEPS_MAX"])
    claim = ("claim", "q", 1, False, 1, ClaimSelection())
    long = ("commit", [DeleteRange(b"a", None)], [b"c/1", b"a"], 0, 0)
    put = ("commit", [Put(b"a", b"")], [], 0, 0)
    play_all(Both(), [put, ("turns",), claim, ("turns",), long])


SMALL: Final = {
    "TURN_STEPS_MAX": 12, "PROPOSAL_BYTES_MAX": 300, "COMPLETED_AT_ONCE_MAX": 16,
    "GARBAGE_LIST_KEYS_MAX": 8, "DELIVERED_AT_ONCE_MAX": 3, "EXECUTED_AT_ONCE_MAX": 3,
}  # fmt: skip
"""Limits that a few commits reach."""


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(steps, min_size=40, max_size=80), st.sets(st.sampled_from(sorted(SMALL))))
def test_both_ways_keep_to_the_same_limits(history: list[Step], small: set[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in small:
            patch.setattr(limits, name, SMALL[name])
        play_all(Both(), history)


def test_a_call_is_answered_though_the_usual_way_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one_range = OneRange(is_general_only=False)

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(one_range.replica.usual_way, "settle", fail)
    asked = one_range.ask(Both().transaction(Put(b"a", b"1")))
    ((answer, error),) = asked.answers
    assert error is None
    assert answer.timestamp
    assert "the usual way failed" in caplog.text
    assert one_range.replica.usual_way is None
