"""The wire: what goes in comes out, and what should not come in does not."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom import errors
from postroom.limits import KEY_BYTES_MAX
from postroom.messaging.requests import (
    AwaitQuiet,
    DeliverDue,
    DiscardDeadLetters,
    EnqueueMessage,
    EnqueueUpdate,
    ExecuteDue,
    ListDeadLetters,
    ListInboxes,
    Peek,
    Peeked,
    ReadCounters,
    ReapMessages,
    ReapQueue,
    ReplayDeadLetters,
)
from postroom.protocol import frames
from postroom.protocol.failures import (
    WITHDRAWN,
    DeadlineExceeded,
    Failure,
    WireError,
    error_from,
    failure_from,
)
from postroom.protocol.requests import decode_result
from postroom.ranges import nodes
from postroom.ranges.nodes import DescribeNode
from postroom.ranges.protections import KeepPosition, ReadPositions
from postroom.ranges.requests import (
    Accounting,
    CollectGarbage,
    CommitTransaction,
    ConditionalPut,
    Delete,
    DeleteRange,
    Get,
    GetForUpdate,
    GetMany,
    Increment,
    Now,
    Protect,
    Put,
    ReadAccounting,
    ReleaseLocks,
    ReverseScan,
    Scan,
    ScanChanges,
    Unprotect,
)

KEYS = st.binary(max_size=20)
BOUNDS = st.none() | KEYS
TIMES = st.integers(0, 2**64 - 1)
COUNTS = st.integers(0, 2**40)
IDS = st.binary(min_size=16, max_size=16)
MESSAGE_IDS = st.binary(min_size=20, max_size=20)
LETTER_IDS = st.binary(min_size=28, max_size=28)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
HEADERS = (
    st.none()
    | st.dictionaries(
        st.text(max_size=5), st.none() | st.booleans() | INTEGERS | st.text() | st.binary()
    )
).map(lambda headers: msgspec.Raw(msgspec.msgpack.encode(headers)))
"""Headers, which stay packed on their way."""
UPDATES = st.one_of(
    st.builds(Put, KEYS, KEYS),
    st.builds(Increment, KEYS, INTEGERS),
    st.builds(Delete, KEYS),
    st.builds(DeleteRange, KEYS, BOUNDS),
    st.builds(Accounting, KEYS, st.dictionaries(st.text(), INTEGERS)),
)
WRITES = st.one_of(
    UPDATES,
    st.builds(ConditionalPut, KEYS, KEYS, st.none() | KEYS),
    st.builds(EnqueueMessage, KEYS, KEYS, HEADERS, TIMES),
    st.builds(EnqueueUpdate, UPDATES, TIMES),
    st.builds(ReapMessages, KEYS, st.lists(MESSAGE_IDS)),
    st.builds(ReplayDeadLetters, st.lists(LETTER_IDS)),
    st.builds(DiscardDeadLetters, st.lists(LETTER_IDS)),
    st.builds(KeepPosition, st.text(min_size=1, max_size=128), TIMES, st.floats(0, 7 * 86_400)),
)
SECONDS = st.floats(0, 60)
REQUESTS = st.one_of(
    st.builds(
        CommitTransaction, IDS, TIMES, SECONDS, TIMES, KEYS,
        st.lists(KEYS), st.lists(st.tuples(KEYS, BOUNDS)), st.lists(WRITES),
    ),
    st.builds(Get, KEYS, TIMES),
    st.builds(GetForUpdate, KEYS, TIMES, IDS, SECONDS),
    st.builds(GetMany, st.lists(KEYS), TIMES, COUNTS),
    st.builds(Scan, KEYS, BOUNDS, TIMES, COUNTS, COUNTS),
    st.builds(ReverseScan, KEYS, BOUNDS, TIMES, COUNTS, COUNTS),
    st.builds(ScanChanges, KEYS, BOUNDS, TIMES, st.booleans()),
    st.builds(Now),
    st.builds(ReadAccounting, KEYS),
    st.builds(Protect, TIMES),
    st.builds(Unprotect, TIMES),
    st.builds(ReleaseLocks, IDS),
    st.builds(ReapQueue, KEYS, COUNTS, COUNTS, IDS, SECONDS, st.booleans()),
    st.builds(Peek, KEYS, COUNTS, TIMES, COUNTS, st.none() | MESSAGE_IDS),
    st.builds(ListInboxes, KEYS, BOUNDS, COUNTS),
    st.builds(ListDeadLetters, COUNTS, COUNTS, KEYS),
    st.builds(ReadCounters),
    st.builds(AwaitQuiet),
    st.builds(ReadPositions),
    st.builds(nodes.ReadNodes),
    st.builds(nodes.RetireNode, COUNTS),
    st.builds(DescribeNode),
)  # fmt: skip


def ask(*requests: Any) -> bytes:
    return frames.encode((1, 5, list(enumerate(requests)), [], False))


def commit(*writes: Any) -> CommitTransaction[Any]:
    return CommitTransaction(bytes(16), 1, 1.0, 0, b"k", [], [], list(writes))


@given(TIMES, st.lists(REQUESTS, max_size=4), st.lists(COUNTS), st.booleans())
def test_requests_come_out_as_they_went_in(
    clock: int, requests: list[Any], withdrawn: list[int], looks_up: bool
) -> None:
    frame = frames.encode((1, clock, list(enumerate(requests)), withdrawn, looks_up))
    message = frames.from_client(frame)
    assert message == frames.Ask(clock, list(enumerate(requests)), withdrawn, looks_up)
    assert [type(each) for _, each in message.requests] == [type(each) for each in requests]


def test_a_commit_is_typed_down_to_its_writes() -> None:
    request = CommitTransaction(
        bytes(16), 1, 1.0, 0, b"k", [], [], [EnqueueUpdate(Put(b"a", b"b"))]
    )
    message = frames.from_client(ask(request))
    assert isinstance(message, frames.Ask)
    assert type(message.requests[0][1]) is CommitTransaction
    assert message.requests[0][1].writes == [EnqueueUpdate(Put(b"a", b"b"))]


WITHOUT_PAGES = [
    (["peek", b"k", 5, 0], Peek(b"k", 5)),
    (["list_dead_letters", 5], ListDeadLetters(5)),
    (["get_many", [b"k"], 0], GetMany([b"k"])),
]


@pytest.mark.parametrize(("sent", "means"), WITHOUT_PAGES, ids=lambda each: type(each).__name__)
def test_a_client_that_knows_no_pages_asks_for_all(sent: list[Any], means: Any) -> None:
    message = frames.from_client(ask(sent))
    assert isinstance(message, frames.Ask)
    assert message.requests[0][1] == means
    assert means.bytes_max > frames.FRAME_BYTES_MAX


def test_a_node_that_knows_no_pages_tells_all() -> None:
    peeked = msgspec.Raw(frames.encode([[(b"id", b"stored")], False]))
    assert decode_result(Peek, peeked) == Peeked([(b"id", b"stored")], more=False)
    letters = msgspec.Raw(frames.encode([(b"id", ("reason", None, None))]))
    (letter,) = decode_result(ListDeadLetters, letters)
    assert not letter.more


UPKEEP = [
    CollectGarbage(1, 1),
    DeliverDue(1),
    ExecuteDue(1),
    nodes.ForgetNode(1),
    nodes.AdmitNode(bytes(16), "a:1"),
    nodes.AdmitNode(bytes(16), "a:1", 3),
    Put(b"k", b"v"),
]


@pytest.mark.parametrize("request_", UPKEEP, ids=lambda each: type(each).__name__)
def test_upkeep_is_not_for_clients(request_: Any) -> None:
    with pytest.raises(WireError):
        frames.from_client(ask(request_))
    if not isinstance(request_, Put):
        with pytest.raises(WireError):
            frames.from_client(ask(commit(request_)))


TOO_MUCH = {
    "a key": Get(bytes(KEY_BYTES_MAX + 1)),
    "a value": commit(Put(b"k", bytes(1024 * 1024 + 1))),
    "a time before time": Get(b"k", -1),
    "a short id": ReleaseLocks(b"id"),
    "not a number": ReapQueue(b"k", 1, 1, bytes(16), float("nan")),
    "a key that is text": msgspec.Raw(frames.encode(["get", "k", 0])),
    "no such request": msgspec.Raw(frames.encode(["drop", b"k"])),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_frame_out_of_bounds_is_refused(what: str) -> None:
    with pytest.raises(WireError):
        frames.from_client(ask(TOO_MUCH[what]))


def test_frames_have_a_limit() -> None:
    with pytest.raises(WireError, match="limit"):
        frames.from_client(bytes(frames.FRAME_BYTES_MAX + 1))
    with pytest.raises(WireError):
        frames.from_client(ask(*[Now()] * (frames.REQUESTS_PER_FRAME_MAX + 1)))


def test_fields_that_later_versions_add_at_the_end_are_ignored() -> None:
    hello = frames.from_client(frames.encode((0, 1, bytes(32), 3, 1, "something new")))
    assert hello == frames.Hello(1, bytes(32), 3)


@given(st.binary(max_size=60))
def test_noise_is_refused(frame: bytes) -> None:
    for decode in (frames.from_client, frames.from_node):
        with suppress(WireError):
            decode(frame)


@given(st.lists(REQUESTS, min_size=1, max_size=3), st.data())
def test_damaged_frames_are_refused_or_are_other_frames(
    requests: list[Any], data: st.DataObject
) -> None:
    frame = bytearray(ask(*requests))
    position = data.draw(st.integers(0, len(frame) - 1))
    frame[position] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(frame), bytes(frame[:position])):
        with suppress(WireError):
            frames.from_client(damaged)


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(WireError):
        frames.from_client(b"\x91" * 100_000 + b"\x00")
    with pytest.raises(WireError):
        frames.from_node(b"\x93\x01\x05" + b"\x91" * 100_000)


# --- errors


def tree(kind: type[errors.Error]) -> list[type[errors.Error]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in tree(sub))]


PUBLIC = [each for each in tree(errors.Error) if each.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", [*PUBLIC, ValueError, TypeError])
def test_every_error_travels(kind: type[Exception]) -> None:
    failure = failure_from(kind("what, and what to do"))
    travelled = msgspec.msgpack.decode(frames.encode(failure), type=Failure)
    error = error_from(travelled)
    assert type(error) is kind
    assert str(error) == "what, and what to do"


def test_errors_keep_what_they_carry() -> None:
    failed = error_from(failure_from(errors.ConditionFailed("m", b"actual")))
    assert isinstance(failed, errors.ConditionFailed)
    assert failed.actual == b"actual"
    later = error_from(failure_from(errors.Unavailable("m", retry_after=1.5)))
    assert isinstance(later, errors.Unavailable)
    assert later.retry_after == 1.5


def test_an_error_that_is_nobodys_business_travels_as_the_nearest_one_that_is() -> None:
    class Hidden(errors.Overflow):
        """An error that is not public."""

    assert type(error_from(failure_from(Hidden("m")))) is errors.Overflow
    assert type(error_from(failure_from(KeyError("m")))) is errors.Error
    assert type(error_from(("NoSuchError", "m", None))) is errors.Error
    assert type(error_from((WITHDRAWN, "m", None))) is DeadlineExceeded
    assert type(error_from(("Unavailable", "m", "soon"))) is errors.Unavailable


def test_an_import_makes_no_decoder_of_all_requests() -> None:
    """The making of one takes longer than all the rest of an import."""
    code = (
        "import postroom.cli.application\n"
        "from postroom.protocol import frames, incremental_decoder, requests\n"
        "from postroom.server import call_frames\n"
        "print(frames._decoder_of_all.cache_info().currsize, len(requests.RESULT_DECODERS),\n"
        "      call_frames._decoder.cache_info().currsize, incremental_decoder._REQUESTS._shapes)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "0 0 0 {}\n"
