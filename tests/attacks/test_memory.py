"""The memory of requests is bounded before it is taken."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from postroom import limits
from postroom.protocol import frames
from postroom.protocol.frames import array_header
from postroom.protocol.streams import LENGTH_BYTES
from postroom.ranges.contract import Role
from postroom.ranges.requests import CommitTransaction, Get, GetMany, Put
from postroom.server.cluster.access import Access
from tests.attacks.hostile import Attacker, Target, memory_below
from tests.remote.client_names import client_id, secret_of

MIB = 1024 * 1024
NODE_BYTES_MAX = 256 * MIB


def long_array(count: int, element: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + element * count


def commit_of(attacker: Attacker, *, reads: bytes, spans: bytes, writes: bytes) -> bytes:
    """Return a commit whose lists are packed already."""
    whole = frames.encode(attacker.commit())
    assert whole.endswith(b"\x90\x90\x90")
    return whole[:-3] + reads + spans + writes


def frame_of(requests: list[bytes]) -> bytes:
    """Return an ``Ask`` of requests that are packed already."""
    pairs = [b"\x92" + frames.encode(number) + each for number, each in enumerate(requests, 1)]
    return b"\x95\x01\x00" + array_header(len(pairs)) + b"".join(pairs) + b"\x90\xc2"


def spans(attacker: Attacker) -> list[bytes]:
    """Return eight commits with a million of the shortest spans each: 660 MB, decoded at once."""
    of_one = long_array(limits.REQUEST_ITEMS_MAX, b"\x92\xc4\x00\xc0")
    return [commit_of(attacker, reads=b"\x90", spans=of_one, writes=b"\x90")] * 8


def keys(attacker: Attacker) -> list[bytes]:
    of_one = long_array(limits.REQUEST_ITEMS_MAX, b"\xc4\x02ab")
    return [commit_of(attacker, reads=of_one, spans=b"\x90", writes=b"\x90")] * 7


def writes(attacker: Attacker) -> list[bytes]:
    of_one = long_array(limits.REQUEST_ITEMS_MAX // 2, b"\x92\xa6delete\xc4\x00")
    return [commit_of(attacker, reads=b"\x90", spans=b"\x90", writes=of_one)]


@pytest.mark.parametrize(("size", "messages"), [(60_000, 12), (250_000, 30), (300_000, 30)])
def test_headers_are_not_decoded_but_one_at_a_time(
    target: Target, attacker: Attacker, size: int, messages: int
) -> None:
    """Headers are decoded one message at a time.

    134 messages of 250,000 empty maps take 2.4 GB at once, whether they are allowed or refused.
    """
    one = b"\x95\xafenqueue_message\xc4\x01k\xc4\x01v\x81\xa1h" + long_array(size, b"\x80")
    one += b"\x00"
    many = array_header(messages) + one * messages
    frame = frame_of([commit_of(attacker, reads=b"\x90", spans=b"\x90", writes=many)])
    with memory_below(8 * len(frame) + 16 * MIB):
        attacker.session.received(frame)
        target.until(lambda: attacker.read() >= 0 and attacker.has(1))
    if size == 60_000:
        assert 1 in attacker.answers, attacker.failures
        assert target.store.db.peek(b"k", 1)[0].headers == {"h": [{}] * 60_000}
    else:
        assert attacker.failures[1][0] == "ValueTooLarge"
        assert "headers" in attacker.failures[1][1]
    target.check_alive()


@pytest.mark.parametrize(("requests", "bytes_max"), [(spans, 8), (keys, 8), (writes, 32)])
def test_lists_of_a_million_are_refused_by_their_length(
    target: Target,
    attacker: Attacker,
    requests: Callable[[Attacker], list[bytes]],
    bytes_max: int,
) -> None:
    """Nothing is decoded, or hardly anything: what a write takes depends on its kind."""
    frame = frame_of(requests(attacker))
    assert len(frame) + LENGTH_BYTES <= frames.FRAME_BYTES_MAX
    with memory_below(bytes_max * MIB):
        attacker.session.received(frame)
        del frame
        target.until(lambda: attacker.read() >= 0 and attacker.session.reading)
    assert {failure[0] for failure in attacker.failures.values()} == {"ValueTooLarge"}
    assert "bytes of memory; nothing was done" in attacker.failures[1][1]
    target.check_alive()


def test_the_decoded_bytes_of_all_clients_are_bounded(target: Target) -> None:
    """Each of them sends what is allowed. Twelve of them need three times the room of these."""
    limits_here = target.sessions.admission.limits
    target.sessions.admission.limits = msgspec.structs.replace(limits_here, bytes_max=32 * MIB)
    attackers = [Attacker(target, b"%d" % number) for number in range(12)]
    keys = [b"%012d" % number for number in range(300_000)]
    asked = frames.encode((1, 0, [(1, GetMany(keys))]))
    del keys
    before = target.sessions.admission.limits.bytes_max
    assert 2 * limits_here.bytes_max <= NODE_BYTES_MAX
    most = 0
    for each in attackers:
        each.session.received(asked)
    for _ in range(4000):
        target.turn()
        most = max(most, target.sessions.admission.bytes)
    assert most <= 2 * before
    assert most > 16 * MIB, "they were decoded beside each other"
    for each in attackers:
        target.until(lambda each=each: each.read() >= 0 and each.has(1))  # type: ignore[misc]
    target.check_alive()


def test_a_frame_that_waits_for_its_turn_is_kept_undecoded(target: Target) -> None:
    attackers = [Attacker(target, b"%d" % number) for number in range(100)]
    frame = frames.encode((1, 0, list(enumerate([Get(b"k")] * 4096))))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for each in attackers:
            each.session.received(bytes(bytearray(frame)))
        for _ in range(20):
            target.turn()
        now, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kept = sum(bool(each.session._intake) for each in attackers)
    assert kept > 50
    assert now - before <= limits.DECODED_TIMES_MAX * len(frame) * len(attackers)
    target.check_alive()


WRONG_INSIDE: Any = ["put", 5, "no bytes"]


@pytest.mark.parametrize("count", [1, 10_000, 100_000])
def test_a_request_of_another_role_is_refused_by_its_tag(target: Target, count: int) -> None:
    """It is refused in a long frame, too; the others in it are served."""
    session = target.sessions.open("ipv4:10.0.0.1:9", lambda: None, Access(Role.READ))
    session.received(
        frames.encode(frames.Hello(frames.PROTOCOL_VERSION, secret_of(b"attacker"), 1))
    )
    commit = CommitTransaction(
        client_id(b"attacker") + bytes(8), 0, 60.0, 0, b"k", [], [], [WRONG_INSIDE] * count
    )
    session.received(frames.encode((1, 0, [(1, Get(b"k")), (2, commit), (3, Get(b"k"))])))
    target.settle()
    answers: list[frames.NumberedAnswer] = []
    while (frame := session.take()) is not None:
        said = frames.from_node(frame)
        answers += said.answers if isinstance(said, frames.Answers) else []
    assert [(answer.number, answer.failure is None) for answer in answers] == [
        (1, True), (2, False), (3, True)
    ]  # fmt: skip
    assert answers[1].failure is not None
    assert answers[1].failure[0] == "AccessDenied"
    session.close()
    target.check_alive()


def test_a_long_commit_of_short_keys_is_no_attack(target: Target, attacker: Attacker) -> None:
    writes = [Put(b"%06d" % number, b"v") for number in range(60_000)]
    number = attacker.ask(attacker.commit(*writes))
    target.until(lambda: attacker.read() >= 0 and attacker.has(number))
    assert number in attacker.answers
    target.check_alive()
