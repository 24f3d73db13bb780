"""Records of a queue that can be decoded, and are not what was written there.

Each case changes one stored record. Those of the first table are recognised at a new lease, or when
firing or time meets them, and set their queue aside. Those of the second one are recognised when
somebody asks for the message, and that request is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import pytest

from postroom.errors import StoreCorrupted
from postroom.messaging.queues import event_groups, periodic, records
from postroom.messaging.queues.claim_requests import ClaimSelection
from postroom.messaging.queues.definition_requests import QueueDefinition
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.queues.records import PAYLOAD_KEPT_BYTES
from tests.messaging.queues.harness import ANY, Q
from tests.messaging.queues.test_damage import Damaged, definition_key

replace = msgspec.structs.replace
encode = records.encode
OTHER_SEQ: Final = bytes(11) + b"\x01"
LARGE: Final = bytes(PAYLOAD_KEPT_BYTES + 1)
X, Y = ClaimSelection(kinds=("x",)), ClaimSelection(kinds=("y",))
NONE = ClaimSelection(kinds=("none",))
Change = Callable[[Any], Any]
_counted = msgspec.msgpack.Decoder(QueueCounts).decode
_schedule = msgspec.msgpack.Decoder(periodic.PeriodicSchedule).decode
_group = msgspec.msgpack.Decoder(event_groups.Outstanding).decode
_definition = msgspec.msgpack.Decoder(QueueDefinition).decode


class Full(Damaged):
    """A queue with one of each record."""

    def __init__(self) -> None:
        super().__init__()
        self.enqueue(b"ready", id=b"ready")
        self.enqueue(LARGE, id=b"a body")
        self.enqueue(b"", id=b"again", kind="x")
        self.enqueue(b"", id=b"after", kind="x")
        again, after = self.claim(2, selection=X)
        self.reject(again, delay=0)
        self.reject(after, delay=500.0)
        self.enqueue(b"", id=b"dead", kind="y")
        self.reject(*self.claim(selection=Y), dead=True)
        self.enqueue(b"", id=b"pointed", key=b"elsewhere", after=5.0)
        self.enqueue(b"", id=b"in a group", kind="y", group="h")

    def key(self, where: Callable[[records.QueueLayout], bytes]) -> bytes:
        """Return the first key that begins so."""
        return self.keys_below(where(self.manager().layout))[0]

    def change(self, key: bytes, decode: Change, change: Change) -> None:
        stored = self.store.engine.get(key)
        assert stored is not None
        changed = encode(change(decode(stored)))
        assert changed != stored
        self.store.engine.inner.write({key: changed}, sync=True)


@pytest.fixture
def queues() -> Iterator[Full]:
    made = Full()
    yield made
    made.store.node.close()


Where = Callable[[records.QueueLayout], bytes]


def _but(**other: Any) -> Change:
    return lambda record: replace(record, **other)


def _state(kind: str, id_: bytes) -> Where:
    return lambda layout: layout.state_key(id_, kind, id_)


def _body(kind: str, id_: bytes, key: bytes | None = None) -> Where:
    return lambda layout: layout.body_key(key or id_, kind, id_)


def _counts(**more: int) -> Change:
    return lambda counted: replace(
        counted, **{name: getattr(counted, name) + number for name, number in more.items()}
    )


COUNTERS: Final[Where] = lambda layout: layout.counters  # noqa: E731 - one of a table
SET_ASIDE: Final[dict[str, tuple[Where, Change, Change, ClaimSelection, float]]] = {
    "definition: of another queue": (
        lambda layout: definition_key(Q), _definition, _but(name="fourth"), NONE, 1,
    ),
    "counters: below zero": (COUNTERS, _counted, _counts(ready=-99, enqueued=-99), NONE, 1),
    "counters: made up": (COUNTERS, _counted, _counts(enqueued=1), NONE, 1),
    "counters: more leased": (COUNTERS, _counted, _counts(leased=1, enqueued=1), NONE, 1),
    "counters: fewer leased": (COUNTERS, _counted, _counts(leased=-1, enqueued=-1), NONE, 1),
    "counters: fewer ready": (COUNTERS, _counted, _counts(ready=-1, enqueued=-1), ANY, 1),
    "counters: fewer scheduled": (
        COUNTERS, _counted, _counts(scheduled=-1, enqueued=-1), NONE, 600,
    ),
    "counters: none scheduled": (
        COUNTERS, _counted, _counts(scheduled=-3, enqueued=-3), NONE, 1,
    ),
    "counters: fewer done": (COUNTERS, _counted, _counts(done=-1), NONE, 70),
    "holding: of another time": (
        lambda layout: layout.leased, records.holdings.decode, _but(until=1), NONE, 1,
    ),
    "holding: of nothing": (
        lambda layout: layout.leased, records.holdings.decode, _but(entries=[]), NONE, 1,
    ),
    "holding: of others": (
        lambda layout: layout.leased, records.holdings.decode,
        lambda holding: replace(holding, entries=[*holding.entries, *holding.entries]), NONE, 1,
    ),
    "schedule: of another name": (
        lambda layout: layout.ticks, _schedule,
        lambda each: replace(each, request=replace(each.request, name="other")), NONE, 1,
    ),
    "ready: of another message": (
        lambda layout: layout.ready, records.entries.decode, _but(seq=OTHER_SEQ), NONE, 1,
    ),
    "ready: in another group": (
        lambda layout: layout.ready, records.entries.decode, _but(group="z"), NONE, 1,
    ),
    "scheduled: of another message": (
        lambda layout: layout.scheduled, records.entries.decode, _but(seq=OTHER_SEQ), NONE, 40,
    ),
    "scheduled: for another time": (
        lambda layout: layout.scheduled, records.entries.decode, _but(due=1), NONE, 40,
    ),
    "body: of another message": (
        _body("", b"a body"), records.bodies.decode, _but(seq=OTHER_SEQ), ANY, 1,
    ),
    "state: of another message": (
        _state("x", b"again"), records.states.decode, _but(seq=OTHER_SEQ), ANY, 1,
    ),
    "state: of a message that is done": (
        _state("x", b"again"), records.states.decode, _but(status=records.DONE), ANY, 1,
    ),
    "state: of no status": (
        _state("x", b"again"), records.states.decode, _but(status=9), ANY, 1,
    ),
    "done: of no such status": (
        lambda layout: layout.done, records.ended_lists.decode,
        lambda ended: [replace(each, status=records.DEAD) for each in ended], NONE, 70,
    ),
}  # fmt: skip
"""Changes of records: where, how, the consumer that meets them, and how long that takes."""


@pytest.mark.parametrize("record", SET_ASIDE)
def test_a_record_of_another_message_sets_its_queue_aside(
    queues: Full, record: str, caplog: pytest.LogCaptureFixture
) -> None:
    where, decode, change, selection, seconds = SET_ASIDE[record]
    number = queues.manager().definition.number
    queues.change(queues.key(where), decode, change)
    queues.store.restart()
    claim = queues.claim_request(100, wait=True, selection=selection, consumer=queues.consumer(9))
    if not queues.told()[Q]:
        queues.start(claim)
    queues.pass_time(seconds)
    queues.pass_time(2)
    assert queues.told()[Q].startswith("the queue 'emails' is damaged")
    with pytest.raises(StoreCorrupted, match=r"'emails' is damaged: .*nothing was changed"):
        queues.enqueue(b"1")
    assert len([each for each in caplog.records if "set aside" in each.getMessage()]) == 1
    queues.check_that_others_go_on()
    queues.drop()
    queues.pass_time(5)
    assert queues.left_of(number) == []


REFUSED: Final[dict[str, tuple[Where, Change, Change, Callable[[Full], object]]]] = {
    "state: another due date": (
        _state("x", b"after"), records.states.decode, _but(due=7), lambda q: q.get(b"after"),
    ),
    "state: another attempt": (
        _state("x", b"after"), records.states.decode, _but(epoch=7), lambda q: q.cancel(b"after"),
    ),
    "state: no such status": (
        _state("x", b"after"), records.states.decode, _but(status=-1), lambda q: q.get(b"after"),
    ),
    "state: lives, and is dead": (
        _state("y", b"dead"), records.states.decode, _but(status=records.LIVE),
        lambda q: q.get(b"dead"),
    ),
    "state: dead since another time": (
        _state("y", b"dead"), records.states.decode, _but(at=7), lambda q: q.replay(b"dead"),
    ),
    "body: another first schedule": (
        _body("", b"ready"), records.bodies.decode, _but(first=7), lambda q: q.get(b"ready"),
    ),
    "body: another group": (
        _body("", b"ready"), records.bodies.decode, _but(group="z"), lambda q: q.cancel(b"ready"),
    ),
    "body: of another message": (
        _body("", b"ready"), records.bodies.decode, _but(seq=OTHER_SEQ),
        lambda q: q.reschedule(b"ready"),
    ),
    "scheduled: of another message": (
        lambda layout: layout.scheduled, records.entries.decode, _but(id=b"z"),
        lambda q: q.cancel(b"pointed"),
    ),
    "dead: another attempt": (
        lambda layout: layout.dead, records.entries.decode, _but(epoch=7),
        lambda q: q.replay(b"dead"),
    ),
    "group: of none": (
        lambda layout: layout.group_key("h"), _group, _but(messages=0),
        lambda q: q.acknowledge(*q.claim(selection=Y)),
    ),
}  # fmt: skip
"""Changes of records: where, how, and the request that meets them."""


@pytest.mark.parametrize("record", REFUSED)
def test_a_request_that_meets_what_is_of_something_else_is_refused(
    queues: Full, record: str
) -> None:
    where, decode, change, ask = REFUSED[record]
    queues.change(queues.key(where), decode, change)
    queues.store.restart()
    with pytest.raises(StoreCorrupted, match=r"'emails' is damaged: .*nothing was changed"):
        ask(queues)
    assert queues.told()[Q] == ""
    queues.enqueue(b"new")
    queues.check_that_others_go_on()


def test_a_pointer_to_nothing_is_damage(queues: Full) -> None:
    """To take the id for free would make a second message of it, if that is elsewhere."""
    layout = queues.manager().layout
    queues.store.engine.inner.write({layout.pointer_key("", b"pointed"): b"nowhere"}, sync=True)
    queues.store.restart()
    with pytest.raises(StoreCorrupted, match="a stored pointer"):
        queues.enqueue(b"", id=b"pointed")


@pytest.mark.parametrize("other", [{"seq": OTHER_SEQ}, {"group": "z"}])
def test_a_wrong_ready_entry_behind_others_is_noticed(queues: Full, other: dict[str, Any]) -> None:
    """The first one of a group is read by itself, the others together."""
    queues.enqueue(b"1", b"2", b"3", group="many")
    last = queues.keys_below(queues.manager().layout.group_prefix("many"))[-1]
    queues.change(last, records.entries.decode, _but(**other))
    queues.store.restart()
    queues.start(queues.claim_request(100, wait=True, selection=NONE))
    queues.pass_time(1)
    assert "a stored entry cannot be read" in queues.told()[Q]


def test_a_mark_behind_a_holding_that_names_none_of_its_messages_is_damage(queues: Full) -> None:
    layout = queues.manager().layout
    mark = next(key for key in queues.keys_below(layout.leased) if layout.is_mark(key))
    queues.change(mark, records.marks.decode, lambda numbers: [*numbers, 2])
    queues.store.restart()
    assert "a mark names messages that its holding does not have" in queues.told()[Q]


def test_a_queue_with_counters_of_scheduled_messages_and_none_is_set_aside(queues: Full) -> None:
    queues.create("small")
    key = queues.manager("small").layout.counters
    counted = encode(QueueCounts(scheduled=1, enqueued=1))
    queues.store.engine.inner.write({key: counted}, sync=True)
    queues.store.restart()
    with pytest.raises(StoreCorrupted, match="1 are scheduled by the counters"):
        queues.stats("small")
    assert "1 are scheduled by the counters" in queues.told()["small"]
