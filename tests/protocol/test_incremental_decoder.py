"""Large frames: what comes of their stretches is what decoding them at once comes to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from random import Random  # noqa: TID251 (seeded)
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom import limits
from postroom.messaging.ingest.requests import LoadRows
from postroom.messaging.queues.requests import Acknowledge, Attempt
from postroom.messaging.requests import (
    CheckInbox,
    EnqueueMessage,
    EnqueueUpdate,
    PostponeMessages,
    ReapMessages,
)
from postroom.protocol import frames, incremental_decoder
from postroom.protocol.decoding import DecodingBudget, PackedWalk
from postroom.protocol.failures import WireError
from postroom.protocol.frames import NotDecoded
from postroom.protocol.incremental_decoder import ask_in_stretches, is_large
from postroom.ranges.contract import Role
from postroom.ranges.requests import Accounting, Get, GetMany, Put
from postroom.server.cluster.access import permitted
from tests.protocol.test_frames import REQUESTS

STRETCH = 200


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FRAME_STRETCH_BYTES", STRETCH)


def packed(*requests: Any, withdrawn: tuple[int, ...] = (), looks_up: bool = False) -> bytes:
    return frames.encode((1, 7, list(enumerate(requests, 1)), withdrawn, looks_up))


def commit(*writes: Any, reads: list[bytes] | None = None, spans: Any = ()) -> Any:
    return ("commit", bytes(16), 1, 60.0, 0, b"anchor", reads or [], spans, writes)


EVERYTHING = permitted(Role.ADMIN)


def in_stretches(
    frame: bytes, on_head: Any = lambda _: None, reserve: Any = lambda _: None
) -> Iterator[Any]:
    return ask_in_stretches(frame, EVERYTHING, DecodingBudget(reserve), on_head)


def decoded(frame: bytes) -> frames.Ask[Any]:
    heads: list[frames.Ask[Any]] = []
    requests = [
        (number, request)
        for some in in_stretches(frame, heads.append)
        for number, request, _ in some
    ]
    return msgspec.structs.replace(heads[0], requests=requests)


ID = bytes(20)
IDS = [number.to_bytes(20, "big") for number in range(300)]
ATTEMPTS = [Attempt(b"key", "kind", b"%d" % number, 3) for number in range(200)]
FRAMES = {
    "keys to read": packed(GetMany([b"%04d" % n for n in range(900)], 5), Get(b"k")),
    "writes": packed(commit(*[Put(b"k%d" % n, b"value") for n in range(300)])),
    "reads and spans": packed(
        commit(reads=[b"%d" % n for n in range(99)], spans=[(b"%d" % n, None) for n in range(99)])
    ),
    "updates": packed(commit(*[EnqueueUpdate(Put(b"k", b"v" * 9)) for _ in range(99)])),
    "a write with ids": packed(commit(Put(b"a", b"b"), ReapMessages(b"k", IDS), Put(b"c", b"d"))),
    "several of them": packed(
        commit(*[PostponeMessages(b"k", [(ID, n) for n in range(99)], None, "why") for _ in "abc"])
    ),
    "ids with a limit": packed(commit(CheckInbox(b"k", None, IDS))),
    "long spans": packed(commit(spans=[(b"%d" % n * 50, None) for n in range(99)])),
    "attempts": packed(commit(Acknowledge("queue", ATTEMPTS))),
    "rows": packed(commit(LoadRows(b"load", bytes(16), IDS, [b"v" * n for n in range(300)]))),
    "long values": packed(commit(Put(b"k", b"v" * 5000), Put(b"k", b"v" * 1_000_000))),
    "a long value later": packed(commit(EnqueueUpdate(Put(b"k", b"v" * 1_000_000)))),
    "many requests": packed(*[Get(b"%d" % n, n) for n in range(4000)], withdrawn=(5, 9)),
    "what a later version says": frames.encode(
        (1, 7, [(1, ("get", b"k", 0, "later", [1] * 500))], (), True, (), "later", [2] * 500)
    ),
    "ranges that are named": frames.encode(
        (1, 7, [(n, Get(b"k%d" % n)) for n in range(99)], (), False, [(n, 2, n) for n in range(9)])
    ),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_decoding_in_stretches_equals_decoding_at_once(kind: str) -> None:
    frame = FRAMES[kind]
    assert is_large(frame)
    assert decoded(frame) == frames.from_client(frame)


@given(st.lists(REQUESTS, max_size=8), st.integers(100, 400))
def test_any_requests(requests: list[Any], stretch: int) -> None:
    frame = packed(*requests, withdrawn=(1, 2, 3), looks_up=True)
    with patch.object(limits, "FRAME_STRETCH_BYTES", stretch):
        ask = decoded(frame)
    if not any(isinstance(request, NotDecoded) for _, request in ask.requests):
        assert ask == frames.from_client(frame)


@given(st.sampled_from(sorted(FRAMES)), st.data())
def test_a_spoiled_frame_is_refused_or_decoded_alike(kind: str, data: st.DataObject) -> None:
    frame = bytearray(FRAMES[kind][:3000])
    for _ in range(data.draw(st.integers(0, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with patch.object(limits, "FRAME_STRETCH_BYTES", STRETCH):
        try:
            ask = decoded(bytes(frame))
        except WireError:
            return
    if not any(isinstance(request, NotDecoded) for _, request in ask.requests):
        assert ask == frames.from_client(bytes(frame))


@pytest.mark.parametrize(
    "frame",
    [
        packed(GetMany([b"key"] * 500))[:-300],
        packed(GetMany([b"key"] * 500)) + b"\x00",
        frames.encode((1, 7, [(1, ("nothing that is known", [b"k"] * 500))], (), False)),
        frames.encode((1, 7, [(1, [["get_many"] * 99])], (), False)),
        frames.encode((1, 7, [(1, ("get_many", [b"k" * 9000] * 9, 0))], (), False)),
        frames.encode((1, 7, [(1, ("get_many", [["deep", [b"k"]]] * 99, 0))], (), False)),
        frames.encode((1, 7, [(1, 2, ("get_many", [b"k"] * 99, 0))], (), False)),
        frames.encode((1, 7, [(n, ("get", b"k", 0)) for n in range(4097)], (), False)),
        frames.encode((1, 7, [], [1] * 4097, False)),
        frames.encode((1, 7, 3, [1] * 500, False)),
        frames.encode((0, 1, bytes(32), 1, "x" * 500)),
        packed(commit(CheckInbox(b"k", None, [ID] * 10_001))),
        b"\xc1" * 500,
        b"\xdd\xff\xff\xff\xff" + bytes(500),
        b"",
    ],
)
def test_bytes_that_are_no_frame_are_refused(frame: bytes) -> None:
    with pytest.raises(WireError):
        decoded(frame)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (commit(EnqueueMessage(b"k", b"", {"h": "x" * 500})), "headers the limit is 65536"),
        (commit(Accounting(b"k", {str(n): 1 for n in range(200)})), "metrics the limit is 64"),
        (commit(EnqueueUpdate(Accounting(b"k", {"x" * 200: 1}))), "metrics the limit is 64"),
        (("get_many", [b"key"] * 501, 0), "a list of 501; one request may have 500"),
        (commit(spans=[(b"k" * 500, None)]), "in a list where nothing is that long"),
    ],
)
def test_a_request_that_is_too_large_is_refused_and_others_of_its_frame_are_not(
    request_: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REQUEST_ITEMS_MAX", 500)
    frame = packed(Get(b"before"), request_, Get(b"behind"))
    (_, before), (number, refused), (_, behind) = decoded(frame).requests
    assert (before, number, behind) == (Get(b"before"), 2, Get(b"behind"))
    assert isinstance(refused, NotDecoded)
    name, message, _ = refused.failure
    assert name == "ValueTooLarge"
    assert why in message
    assert "nothing was done" in message


def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield the items that were gone over, or decoded, since the last call."""
    done = [0, 0]
    skip = PackedWalk.skip

    def skipped(walk: Any, count: int) -> Any:
        going_over = skip(walk, count)
        begin = walk.at
        while True:
            try:
                next(going_over)
            except StopIteration as stop:
                done[0] += walk.at - begin
                return stop.value
            done[0] += walk.at - begin
            begin = walk.at
            yield

    def counting(decode: Any) -> Any:
        def count(part: bytes) -> Any:
            found = decode(part)
            done[1] += len(found)
            return found

        return count

    monkeypatch.setattr(PackedWalk, "skip", skipped)
    kinds = incremental_decoder._REQUESTS, incremental_decoder._WRITES
    for kind in (of.shape(tag) for of in kinds for tag in of.types):
        assert kind is not None
        for place, each in dict(kind.lists).items():
            of = each.element
            counts = dataclasses.replace(of, decode=counting(of.decode))
            monkeypatch.setitem(
                kind.lists,
                place,
                incremental_decoder._List(each.name, each.kind, counts, each.length_max),
            )
    while True:
        done[:] = 0, 0
        yield done


@pytest.mark.parametrize(
    "frame",
    [
        packed(GetMany([b"%05d" % n for n in range(50_000)])),
        packed(commit(*[EnqueueUpdate(Put(b"%05d" % n, b"v")) for n in range(20_000)])),
        packed(commit(ReapMessages(b"k", IDS * 40))),
        packed(commit(spans=[(b"%d" % n, None) for n in range(20_000)])),
        packed(commit(EnqueueMessage(b"k", b"", {"h": [[]] * 100_000}))),
    ],
    ids=["keys", "updates", "ids", "spans", "headers"],
)
def test_each_stretch_is_bounded_in_bytes_and_items(
    monkeypatch: pytest.MonkeyPatch, frame: bytes
) -> None:
    """Decoded at once, the least bytes make the most items: so items are counted, and bytes."""
    stretch = 4000
    monkeypatch.setattr(limits, "FRAME_STRETCH_BYTES", stretch)
    stages, most_bytes, most_items, items = counted(monkeypatch), 0, 0, 0
    going_on = in_stretches(frame)
    while True:
        done = next(stages)
        try:
            next(going_on)
        except StopIteration:
            break
        finally:
            most_bytes, most_items = max(most_bytes, done[0]), max(most_items, done[1])
            items += done[1]
    assert most_bytes <= 2 * stretch + 256 * 6, "what is gone over"
    assert most_items <= stretch, "what is made"
    assert items in {0, 20_000, 50_000, 12_000}


def test_decoding_at_once_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count above counts: msgspec makes all of it at once."""
    frame = packed(GetMany([b"%05d" % n for n in range(50_000)]))
    stages = counted(monkeypatch)
    monkeypatch.setattr(limits, "FRAME_STRETCH_BYTES", len(frame))
    done = next(stages)
    decoded(frame)
    assert done[0] >= len(frame) - 100


LARGE_MAP = {f"{number}": "x" * 9 for number in range(40)}
WRITE = ("enqueue_message", b"k", b"", LARGE_MAP, 0)
UPDATE = ("accounting", b"k", dict.fromkeys(LARGE_MAP, 1))


@pytest.mark.parametrize(
    "request_",
    [
        ("commit", bytes(16), 1, 60.0, 0, b"anchor", [], [], [WRITE, ("put", 5, b"")]),
        ("commit", bytes(16), 1, 60.0, 0, b"anchor", [], [], [("put", 5, b""), WRITE]),
        ("commit", bytes(16), 1, 60.0, 0, b"anchor", [], [], [WRITE, *[("delete", 5)] * 99]),
        ("commit", bytes(16), 1, 60.0, 0, b"anchor", [], [], [(*WRITE[:4], "soon")]),
        ("commit", bytes(15), 1, 60.0, 0, b"anchor", [], [], [WRITE]),
        ("commit", bytes(16), 1, 60.0, 0, b"anchor", [WRITE], [], []),
        ("commit", bytes(16), 1, 60.0, 0, b"anchor", [], [WRITE]),
        ("commit", bytes(16), 1, 60.0, 0, b"anchor", [], [], [("enqueue_update", UPDATE, "soon")]),
        (
            "commit", bytes(16), 1, 60.0, 0, b"anchor", [], [],
            [("enqueue_update", ("accounting", 7, UPDATE[2]))],
        ),
        ("get", LARGE_MAP, 0),
    ],
)  # fmt: skip
def test_beside_what_is_too_large_all_must_be_sound(request_: Any) -> None:
    frame = packed(request_)
    with pytest.raises(WireError):
        frames.from_client(frame)
    with pytest.raises(WireError):
        decoded(frame)


def test_only_the_request_that_is_too_large_is_refused() -> None:
    writes = [WRITE, ("put", b"k", b"v", False), ("enqueue_update", UPDATE), WRITE]
    frame = packed(commit(*writes), ("get", b"k", 0))
    first, second = decoded(frame).requests
    assert isinstance(first[1], NotDecoded)
    assert second == (2, Get(b"k"))
    frames.from_client(frame)


FEW = IDS[:6]
SMALL = [
    packed(GetMany([b"%04d" % n for n in range(6)], 5), Get(b"k"), withdrawn=(1, 3), looks_up=True),
    packed(commit(Put(b"k", b"value"), ReapMessages(b"k", FEW, True, [(ID, 3)]), Put(b"c", b"d"))),
    packed(commit(reads=[b"%d" % n for n in range(5)], spans=[(b"%d" % n, None) for n in (1, 2)])),
    packed(commit(EnqueueUpdate(Put(b"k", b"v" * 30)), EnqueueMessage(b"k", b"", {"h": [1, 2.5]}))),
    packed(commit(PostponeMessages(b"k", [(ID, n) for n in range(3)], None, "why"))),
    packed(commit(Acknowledge("queue", ATTEMPTS[:4]), CheckInbox(b"k", None, tuple(FEW)))),
    packed(commit(LoadRows(b"load", bytes(16), FEW, [b"v" * n for n in range(6)]))),
    FRAMES["what a later version says"][:40] + b"\x91\x01\x90\xc3\x01\x81\xa1x\x01",
]
PIECES = [
    b"\xc1", b"\xd6\xff" + bytes(4), b"\xd4\x05\x00", b"\xa2\xff\xfe", b"\x81\xc0\xc0", b"\xc0",
    b"\x81\xc4\x01a\x01", b"\x81\xa2\xff\xff\x01", b"\xcf" + b"\xff" * 8, b"\xca" + bytes(4),
    b"\x91" * 30 + b"\xc0", b"\x90", b"\x80", b"\xdc\x00\x00", b"\xdd\xff\xff\xff\xff", b"\xa1k",
]  # fmt: skip


def mutated(frame: bytes, random: Random) -> bytes:
    changed = bytearray(frame)
    for _ in range(random.randint(1, 2)):
        at = random.randrange(len(changed))
        changed[at : at + random.randint(0, 2)] = random.choice(
            [random.choice(PIECES), random.randbytes(1), bytes([changed[at] ^ 1]), b""]
        )
    return bytes(changed)


def outcome(decode: Any, frame: bytes) -> Any:
    try:
        ask = decode(frame)
    except WireError:
        return WireError
    return NotDecoded if any(type(each) is NotDecoded for _, each in ask.requests) else ask


@pytest.mark.parametrize("stretch", [16, 48, 100_000])
def test_both_decoders_say_the_same_of_whatever_comes(
    monkeypatch: pytest.MonkeyPatch, stretch: int
) -> None:
    """Both decoders agree, but for what is too large.

    Few numbers are withdrawn: real stretches have room for as many as there may be.
    """
    monkeypatch.setattr(limits, "FRAME_STRETCH_BYTES", stretch)
    random = Random(stretch)
    refused = 0
    for _ in range(600):
        frame = mutated(random.choice(SMALL), random)
        by_parts, at_once = outcome(decoded, frame), outcome(frames.from_client, frame)
        refused += at_once is WireError
        if by_parts is not NotDecoded:
            assert by_parts == at_once, frame.hex()
    assert 100 < refused < 600
