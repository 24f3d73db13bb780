"""Every request tells everything about itself, and its fields confirm what it concerns."""

from __future__ import annotations

import sys
import types
from bisect import bisect_right
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec
import pytest

from postroom.messaging.bulk_requests import ScanRecords, cursor_at
from postroom.messaging.ingest.requests import BeginLoad, LoadRows
from postroom.messaging.queues.claim_requests import ClaimSelection
from postroom.messaging.queues.queries import ListQueueMessages
from postroom.messaging.queues.requests import Attempt, EnqueueInQueue, WhenDone
from postroom.messaging.requests import (
    CancelScheduled,
    CheckInbox,
    DiscardDeadLetters,
    EnqueueMessage,
    EnqueueUpdate,
    ListScheduled,
    ReplayDeadLetters,
)
from postroom.protocol.requests import REQUESTS, Requests, name_of, weight_of
from postroom.ranges import access, audit, protection_news
from postroom.ranges.contract import (
    ROOT_ID,
    UNTIL_IT_HAPPENS,
    Command,
    Concern,
    ConcernsKey,
    KeySet,
    Maintenance,
    RangeIds,
    Read,
    Request,
    Role,
    Scope,
    Write,
    may_be_long,
)
from postroom.ranges.lease_moves import LeaseMoves
from postroom.ranges.nodes import DescribeNode, NodeRecords
from postroom.ranges.ports import Registry
from postroom.ranges.requests import (
    Accounting,
    Bound,
    CommitTransaction,
    Delete,
    DeleteRange,
    Get,
    Key,
    Put,
    ReleaseLocks,
    TransactionId,
)
from postroom.ranges.rights import Verb
from postroom.server.assembly import assemble_range
from postroom.server.services import WakeUps
from tests.client.stores import Store

TOLD_BY_EACH: Final = ("answer", "since")
"""The attributes that each class says itself: it inherits them from no other request."""
OWN_IDS: Final = {"transaction_id", "consumer"}
TOLD: Final = frozenset(Request.__annotations__) | frozenset(Write.__annotations__)
WIDER: Final[dict[type[Request], str]] = {
    ListScheduled: "an entry about a key lies in the outbox of the range that has sent it",
}
"""The requests that concern more than the keys in their fields, and why."""

NARROWER: Final[dict[type[Request], str]] = {
    BeginLoad: "a range begins the load of its own part of the span",
    LoadRows: "a range loads the first rows, up to its end",
}
"""The requests that concern a part of the keys in their fields, and why."""

every_request = pytest.mark.parametrize("kind", REQUESTS.all, ids=name_of)
every_write = pytest.mark.parametrize("kind", REQUESTS.writes, ids=name_of)


# --- a request of each class ----------------------------------------------------------------------


def sample(kind: Any) -> Any:
    """Return a request, or a part of one, with a key of its own in each field with keys."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    names = {"end": "starts no more"}  # behind the start
    return kind(*(value_of(type_, names.get(name, name)) for name, type_ in fields.items()))


def value_of(type_: Any, name: str) -> Any:
    """Return a value of a type; keys are made from the name of their field."""
    plain = without_annotation(type_)
    origin, of = get_origin(plain), get_args(plain)
    if origin in {Union, types.UnionType}:
        return value_of(of[0], name)
    if origin is list or (origin is tuple and of[1:] == (...,)):
        return origin([value_of(of[0], f"{name} 1"), value_of(of[0], f"{name} 2")])
    if origin is tuple:
        return tuple(value_of(each, f"{name} {place}") for place, each in enumerate(of))
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
        return sample(plain)
    simple = {bytes: of_length(name.encode(), type_), str: name, int: 1, float: 1.0, bool: False}
    simple |= dict.fromkeys([plain] if origin is Literal else [], of[0] if of else None)
    if isinstance(plain, TypeVar):
        return Put(b"a write", b"")
    return {} if origin is dict else simple.get(plain)


def of_length(value: bytes, type_: Any) -> bytes:
    """Return bytes that are as long as their type wants them."""
    for each in getattr(type_, "__metadata__", ()):
        value = value.ljust(each.min_length or 0, b".")[: each.max_length]
    return value


def without_annotation(type_: Any) -> Any:
    return get_args(type_)[0] if get_origin(type_) is Annotated else type_


def keys_of(part: Any) -> KeySet:
    """Return the keys and spans in the fields of a part of a request, by their types."""
    keys: list[bytes] = []
    spans: list[tuple[bytes, bytes | None]] = []
    for field in msgspec.structs.fields(part):
        value, type_ = getattr(part, field.name), without_annotation(field.type)
        if type(part) is ClaimSelection or field.name == "homes":
            continue  # messages are taken wherever they lie, and those in hand count here
        if field.name in {"start", "end"}:
            if field.name == "start" and field.type in {Key, Bound}:
                spans.append((part.start, part.end))
        elif field.type == Key:
            keys.append(part.anchor() if isinstance(part, EnqueueInQueue) else value)
        elif type_ == list[Key]:
            keys += value
        elif type_ == list[tuple[Bound, Bound | None]]:
            spans += value
        else:
            for each in value if isinstance(value, list | tuple) else [value]:
                if isinstance(each, msgspec.Struct):
                    inner = keys_of(each)
                    keys += inner.keys
                    spans += inner.spans
    return KeySet(tuple(keys), tuple(spans))


def bytes_in(part: Any) -> Iterator[bytes]:
    """Yield all bytes in the fields of a part of a request."""
    if isinstance(part, bytes | str):
        yield part if isinstance(part, bytes) else part.encode()
    elif isinstance(part, list | tuple):
        for each in part:
            yield from bytes_in(each)
    elif isinstance(part, msgspec.Struct):
        yield from bytes_in([getattr(part, name) for name in part.__struct_fields__])


# --- nothing is left open -------------------------------------------------------------------------


def left_open(kind: type[Request]) -> list[str]:
    """Return what a class of requests does not say, or says twice; empty: nothing."""
    open_ = [name for name in TOLD_BY_EACH if name not in vars(kind)]
    open_ += [name for name in ("role",) if not hasattr(kind, name)]
    if "verbs" not in vars(kind) and getattr(kind, "role", None) is not None:
        open_.append("verbs")
    open_ += [f"field {name}" for name in kind.__struct_fields__ if name in TOLD]
    if sum(base in kind.__mro__ for base in (Read, Write, Command)) != 1:
        open_.append("its kind")
    if kind.concerns is Request.concerns:
        open_.append("what it concerns")
    if not kind.__doc__:
        open_.append("what it is for")
    if ("wait" in kind.__struct_fields__) != (kind.waits is not Request.waits):
        open_.append("whether it waits")
    if kind.role is not None and set(kind.own_ids) != OWN_IDS & set(kind.__struct_fields__):
        open_.append("whose transactions it names")
    return open_


@every_request
def test_a_request_leaves_nothing_open(kind: type[Request]) -> None:
    assert left_open(kind) == []
    config = kind.__struct_config__
    assert config.frozen
    assert config.array_like
    assert not config.gc
    assert kind.since >= 1
    assert kind.wait_seconds_max in {0.0, UNTIL_IT_HAPPENS} or kind is CommitTransaction
    msgspec.msgpack.Decoder(kind.answer)  # it is a type


def test_a_request_that_leaves_something_open_is_found() -> None:
    class Vague(Read, frozen=True, tag="vague"):
        wait: bool
        since: int  # hides the revision
        transaction_id: TransactionId

    assert set(left_open(Vague)) >= {
        "answer", "verbs", "field since", "what it concerns", "whether it waits",
        "whose transactions it names",
    }  # fmt: skip


def test_names_on_the_wire_are_unique() -> None:
    names = [name_of(kind) for kind in REQUESTS.all]
    assert len(set(names)) == len(names)


@every_request
def test_the_memory_of_a_request_is_known_from_its_fields(kind: type[Request]) -> None:
    request = sample(kind)
    assert weight_of(request) >= 24 + 8 * len(kind.__struct_fields__)


def test_every_request_has_an_evaluator_and_every_evaluator_a_request() -> None:
    store = Store()
    made = assemble_range(
        ROOT_ID, store.node, store.node.root, store.engine, WakeUps(store.node.tasks)
    )
    registry: Registry = made.replica.registry
    NodeRecords(ROOT_ID).register(registry)
    access.register(registry)
    audit.register(registry)
    LeaseMoves(made.replica.listing, store.node.root).register(registry)
    store.node.settings.register(registry)
    protection_news.register(registry, made.replica.protections)
    evaluated = [*registry.reads, *registry.commands, *registry.writes]
    elsewhere = {DescribeNode, ReleaseLocks}  # the node itself, and the replica itself
    assert sorted(map(name_of, evaluated)) == sorted(
        name_of(kind) for kind in REQUESTS.all if kind not in elsewhere
    )
    assert set(registry.writes) == set(REQUESTS.writes)
    assert all(issubclass(kind, Read) for kind in registry.reads)
    assert all(issubclass(kind, Command) for kind in registry.commands)
    store.db.close()


def test_a_client_sends_neither_maintenance_nor_a_write_alone() -> None:
    assert not any(issubclass(kind, Write | Maintenance) for kind in REQUESTS.asked)
    assert all(kind.role is None for kind in REQUESTS.all if issubclass(kind, Maintenance))


# --- keys that requests concern -------------------------------------------------------------------


@every_request
def test_a_request_concerns_the_keys_in_its_fields(kind: type[Request]) -> None:
    request = sample(kind)
    concern, keys = request.concerns(), keys_of(request)
    if kind is CommitTransaction:
        concern = together(request.participants())
    if kind is WhenDone:  # its message is not enqueued before the group is done
        keys = KeySet((request.anchor(),))
    if kind is ListQueueMessages:
        keys = KeySet(spans=(request.homes,))
    if kind in WIDER:
        assert concern is Scope.WHOLE_STORE
    elif kind in NARROWER:
        assert isinstance(concern, KeySet)
        assert len(concern.keys) == 1
        assert set(concern.keys) <= set(bytes_in(request))
    elif isinstance(concern, KeySet):
        assert set(keys.keys) <= set(concern.keys)
        assert set(keys.spans) == set(concern.spans)
        assert set(concern.keys) <= set(bytes_in(request)), "a key that it does not have"
        assert concern != KeySet()
    elif isinstance(concern, RangeIds):
        assert keys == KeySet()
        assert concern.ids
    else:
        assert keys == KeySet()


def together(concerns: Iterator[Concern]) -> KeySet:
    sets = [each for each in concerns if isinstance(each, KeySet)]
    return KeySet(
        tuple(key for each in sets for key in each.keys),
        tuple(span for each in sets for span in each.spans),
    )


@every_request
def test_a_request_tells_at_which_keys_its_work_is_done(kind: type[Request]) -> None:
    for keys, spans in sample(kind).works_at():
        assert all(isinstance(key, bytes) for key in (*keys, *(start for start, _ in spans)))


def test_accounting_concerns_the_prefixes_of_its_key_too() -> None:
    assert Accounting(b"a/b/c", {}).concerns() == KeySet((b"a/b/c", b"a", b"a/b"))


def test_a_message_that_is_named_by_its_id_is_found_by_that() -> None:
    by_id = Attempt(b"", "", b"its id", by_id=True)
    for kind in REQUESTS.writes:
        if "attempts" in kind.__struct_fields__:
            concern = kind("emails", [Attempt(b"key", "", b"id"), by_id], *rest(kind)).concerns()
            assert concern == KeySet((b"key", b"its id"))


def rest(kind: type[Request]) -> list[Any]:
    fields = msgspec.structs.fields(kind)[2:]
    return [1.0 for field in fields if field.required]


@pytest.mark.parametrize("group", ["", "group"])
def test_the_range_of_a_given_id_or_a_group_participates_in_an_enqueue_and_that_of_a_key_does_not(
    group: str,
) -> None:
    given = EnqueueInQueue("q", b"key", "", b"id", b"", group=group)
    assert given.concerns() == given.participant() == KeySet((b"id",))
    assert given.participates()
    made_up = EnqueueInQueue("q", b"key", "", b"id", b"", group=group, is_unique=True)
    assert made_up.concerns() == KeySet((made_up.home,))
    assert made_up.participates() == bool(group)


def test_the_id_of_a_dead_letter_or_a_scheduled_entry_tells_its_range() -> None:
    letters = [number.to_bytes(8, "big") + bytes(20) for number in (7, 3, 7)]
    for kind in (ReplayDeadLetters, DiscardDeadLetters):
        assert kind(letters).concerns() == RangeIds((3, 7))
    entries = [id_ + bytes(9) for id_ in letters]
    assert CancelScheduled(entries[:1]).concerns() == RangeIds((7,))


def test_a_scan_of_records_goes_on_at_the_key_of_its_cursor() -> None:
    for table in ("data", "inbox", "inbox_index"):
        first = ScanRecords(table, b"a", b"z", 1)
        assert first.concerns() == KeySet(spans=((b"a", b"z"),))
        onward = msgspec.structs.replace(first, cursor=cursor_at(table, b"m\x00"))
        assert onward.concerns() == KeySet(spans=((b"m\x00", b"z"),))
    assert ScanRecords("outbox", b"a", b"z", 1).concerns() == KeySet((b"a",))


def test_the_recipients_of_messages_have_no_part_in_their_transaction() -> None:
    writes = [Put(b"a", b""), EnqueueMessage(b"b", b""), EnqueueUpdate(Delete(b"c"))]
    commit = CommitTransaction(bytes(16), 1, 1.0, 0, b"a", [], [], writes)
    assert together(commit.participants()) == KeySet((b"a", b"a"))


@every_write
def test_the_anchor_of_a_write_is_a_key_that_it_has(kind: type[Write]) -> None:
    write = sample(kind)
    assert write.anchor() in {b"", *bytes_in(write)}


@every_write
def test_the_touched_keys_of_a_write_are_among_the_concerned_ones(kind: type[Write]) -> None:
    write = sample(kind)
    touched, concern = write.touches(), write.concerns()
    if isinstance(touched, bytes):
        assert touched in concern.keys
    elif touched is not None:
        keys = [key for key in concern.keys if touched[0] <= key < (touched[1] or b"\xff")]
        assert touched in concern.spans or tuple(keys) == concern.keys


def test_an_update_that_is_due_later_waits_for_no_lock() -> None:
    assert EnqueueUpdate(Delete(b"key")).touches() == b"key"
    assert EnqueueUpdate(Delete(b"key"), due=1).touches() is None


def test_only_a_write_that_may_take_long_says_so() -> None:
    assert may_be_long(DeleteRange)
    assert not may_be_long(Put)
    assert sum(map(may_be_long, REQUESTS.writes)) < len(REQUESTS.writes) / 2 + 10
    assert [kind for kind in REQUESTS.writes if kind.only_checks] == [CheckInbox]


# --- a router that knows no request ---------------------------------------------------------------

STARTS: Final = [b"", b"f", b"p"]
"""The first keys of three ranges, which are called 0, 1 and 2; 0 is the root."""


def destinations(request: Request) -> set[int | str]:
    """Return the ranges that a request goes to, by what it says of itself alone."""
    concern = request.concerns()
    match concern:
        case Scope.NODE:
            return {"this node"}
        case Scope.RANGE:
            return {"its own range"}
        case Scope.ROOT:
            return {0}
        case Scope.WHOLE_STORE:
            return set(range(len(STARTS)))
        case RangeIds(ids):
            return set(ids)
        case KeySet(keys, spans):
            found: set[int | str] = {bisect_right(STARTS, key) - 1 for key in keys}
            for start, end in spans:
                last = len(STARTS) if end is None else bisect_right(STARTS, end)
                found |= set(range(bisect_right(STARTS, start) - 1, max(last, 1)))
            return found


@every_request
def test_a_router_can_tell_where_any_request_goes(kind: type[Request]) -> None:
    assert destinations(sample(kind))


def test_a_router_sends_a_request_to_the_ranges_of_its_keys() -> None:
    class Swap(Read, frozen=True, tag="swap"):
        """A request that the router has never heard of."""

        answer: ClassVar = None
        since: ClassVar = 1
        verbs: ClassVar = (Verb.WRITE,)

        one: Key
        other: Key

        def concerns(self) -> Concern:
            """Return both keys."""
            return KeySet((self.one, self.other))

    assert left_open(Swap) == []
    assert destinations(Swap(b"a", b"z")) == {0, 2}
    assert destinations(Get(b"g")) == {1}
    assert destinations(DeleteRange(b"b", b"h")) == {0, 1}
    assert destinations(DeleteRange(b"g", None)) == {1, 2}


# --- the tables are derived -----------------------------------------------------------------------


class Look(ConcernsKey, Read, frozen=True, tag="look"):
    """A read of this module."""

    answer: ClassVar = int
    since: ClassVar = 2
    verbs: ClassVar = (Verb.READ,)

    key: Key


class Touch(ConcernsKey, Write, frozen=True, tag="touch"):
    """A write of this module."""

    answer: ClassVar = None
    since: ClassVar = 2
    verbs: ClassVar = (Verb.WRITE,)

    key: Key


def test_the_requests_of_a_module_are_found_by_being_defined_there() -> None:
    found = Requests([sys.modules[__name__]])
    assert found.all == (Look, Touch), "those that are imported count where they are defined"
    assert found.asked == (Look,)
    assert found.answers == {Look: int}
    assert found.allowed(Role.READ) == {Look}
    packed = msgspec.msgpack.encode(Touch(b"key"))
    assert msgspec.msgpack.decode(packed, type=found.write) == Touch(b"key")
