"""Images: what administrators send that is hostile, or comes to much, has its bounds."""

from __future__ import annotations

import msgspec
import pytest

from postroom import limits
from postroom.kv import keys
from postroom.messaging.bulk_requests import TABLES, ScanRecords
from postroom.messaging.ingest.requests import (
    AbandonRestore,
    BeginRestore,
    CheckImage,
    EndPart,
    EndRestore,
    ReadRestore,
    RestoreEntries,
)
from postroom.ranges.contract import Role
from postroom.server.cluster.access import Access
from tests.attacks.hostile import Attacker, Target, memory_below

MIB = 1024 * 1024
RUN = b"1" * 16


@pytest.fixture
def administrator(target: Target, attacker: Attacker) -> Attacker:
    """Return an attacker that was let in as an administrator."""
    open_session = target.sessions.open

    def as_administrator(peer: str, on_output: object) -> object:
        return open_session(peer, on_output, Access(Role.ADMIN))  # type: ignore[arg-type]

    target.sessions.open = as_administrator  # type: ignore[assignment,method-assign]
    del attacker
    return Attacker(target, b"admin")


def head(at: int, value: bytes = b"v") -> bytes:
    return b"\x01" + keys.u64(at) + value


def begun(target: Target, administrator: Attacker) -> int:
    at = target.store.node.clock.reading() - 1
    assert administrator.result(BeginRestore(RUN, b"i", at)) == "opening"
    assert administrator.result(BeginRestore(RUN, b"i", at)) == "restoring"
    return at


def test_a_client_that_may_only_write_cannot_restore(attacker: Attacker, target: Target) -> None:
    for request in (
        BeginRestore(RUN, b"i", 1), RestoreEntries(RUN, [b"a"], [b"b"]), EndPart(RUN, 0, 0),
        EndRestore(RUN, 0, 0), AbandonRestore(),
    ):  # fmt: skip
        assert attacker.failure(request)[0] == "AccessDenied"
    assert attacker.result(ReadRestore())[0] == ""
    target.check_alive()


def test_chunks_of_any_size(target: Target, administrator: Attacker) -> None:
    at = begun(target, administrator)
    names = [keys.head_key(b"%08d" % n) for n in range(limits.RESTORED_CHUNK_ROWS_MAX)]
    administrator.result(RestoreEntries(RUN, names, [head(at)] * len(names)))
    administrator.result(RestoreEntries(RUN, names, [head(at)] * len(names)))
    large = [keys.head_key(b"x%08d" % n) for n in range(30)]
    with memory_below(200 * MIB):
        chunk = RestoreEntries(RUN, large, [head(at, bytes(MIB))] * 30)
        assert administrator.failure(chunk)[0] == "TransactionTooLarge"
    target.check_turns()
    assert administrator.result(CheckImage())[0] == {"data": len(names)}
    while administrator.result(AbandonRestore()):
        pass
    target.check_turns()
    target.check_alive()


@pytest.mark.parametrize("stored", [b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xc1", b""])
@pytest.mark.parametrize(
    "name",
    [
        keys.inbox_prefix(b"a") + bytes(20),
        keys.RANGE + keys.EXECUTABLE + keys.WAITING + bytes(28),
        keys.RANGE + keys.QUEUES + keys.u32(1) + keys.DONE + bytes(8),
        keys.staged_prefix(keys.STAGED_CHUNK, b"q") + bytes(44),
        keys.DATA + b"\x00\x01" + keys.QUEUE_BODY + bytes(4) + b"\x00\x01",
        keys.mail_key(b"a"),
        keys.DATA + b"\xff" * 40_000,
    ],
)
def test_entries_that_are_none(
    target: Target, administrator: Attacker, name: bytes, stored: bytes
) -> None:
    begun(target, administrator)
    before = len(target.store.dump())
    with memory_below(64 * MIB):
        number = administrator.ask(RestoreEntries(RUN, [name], [stored]))
        target.until(lambda: administrator.read() >= 0 and administrator.has(number))
    assert number not in administrator.answers
    assert len(target.store.dump()) == before
    target.check_turns()


_MANY = 1_000_000
_LEASED = keys.RANGE + keys.QUEUES + keys.u32(1) + keys.LEASED
_HELD = b"\x96" + b"".join(map(msgspec.msgpack.encode, [b"", 0, 0, b"", 0]))
_WINNER = msgspec.msgpack.encode([b"a" * 16, 1])
_ENTRY = msgspec.msgpack.encode([b"", "", b"", b"", 0, 0])


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        (keys.accounting_key(b"a"), b"\xdf" + keys.u32(_MANY) + b"\xa2ab\x01" * _MANY),
        (
            keys.RANGE + keys.QUEUES + keys.u32(1) + keys.DONE + bytes(8),
            b"\xdd" + keys.u32(_MANY) + msgspec.msgpack.encode([b"", "", b"", b"", 0]) * _MANY,
        ),
        (_LEASED + bytes(8 + 12) + bytes(8), b"\xdd" + keys.u32(10 * _MANY) + b"\x00" * 10 * _MANY),
        (_LEASED + bytes(8 + 12), _HELD + b"\xdd" + keys.u32(_MANY) + _ENTRY * _MANY),
        (
            keys.staged_prefix(keys.STAGED_WINNERS, b"q"),
            b"\xdd" + keys.u32(_MANY // 2) + _WINNER * (_MANY // 2),
        ),
    ],
)
def test_long_lists_are_not_decoded(
    target: Target, administrator: Attacker, name: bytes, stored: bytes
) -> None:
    begun(target, administrator)
    with memory_below(100 * MIB):
        failure = administrator.failure(RestoreEntries(RUN, [name], [stored]))
    assert failure[0] == "Invalid"
    assert "length" in failure[1]
    target.check_turns()


def test_too_many_at_once_are_no_request(target: Target, administrator: Attacker) -> None:
    begun(target, administrator)
    many = [keys.head_key(b"%08d" % n) for n in range(limits.RESTORED_CHUNK_ROWS_MAX + 1)]
    number = administrator.ask(RestoreEntries(RUN, many, [b""] * len(many)))
    target.until(lambda: administrator.read() >= 0 and administrator.has(number))
    assert number not in administrator.answers


def test_reading_and_counting_take_their_turns(target: Target, attacker: Attacker) -> None:
    target.fill(30_000)
    for request in (ScanRecords("image", b"", None, 0, bytes_max=1 << 60), CheckImage()):
        attacker.result(request)
    target.check_turns()
    for after in (b"\x06", b"\xff" * 30, b"\x03", b"\x00" * 30):
        for table in TABLES:
            attacker.ask(ScanRecords(table, b"", None, 0, cursor=after, bytes_max=1))
    target.settle()
    target.check_turns()
    target.check_alive()
