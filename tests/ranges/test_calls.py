"""A command that is encoded in parts is the command."""

from __future__ import annotations

import msgspec
import pytest

from postroom import limits
from postroom.ranges.calls import LeasedWrites, decode_in_parts, encode_in_parts
from postroom.ranges.state import decode_command


@pytest.mark.parametrize("part", [15, 16, 65_535, 65_536, 100_000])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 65_535, 65_536, 70_001])
def test_parts_come_to_the_same_bytes(
    count: int, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COMPLETED_AT_ONCE_MAX", part)
    writes = {b"%d" % n: b"v" * (n % 40) if n % 3 else None for n in range(count)}
    command = LeasedWrites(7, writes, 1 << 60, b"sums" if part % 2 else None)
    encoding, turns = encode_in_parts(command), 0
    try:
        while True:
            next(encoding)
            turns += 1
    except StopIteration as stop:
        packed = stop.value
    assert packed == msgspec.msgpack.encode(command)
    assert decode_command(packed) == command
    assert turns == -(-count // part) + 1
    assert _decoded(packed) == (command, -(-count // (part // 4)))


def test_a_command_that_is_cut_is_an_error() -> None:
    packed = msgspec.msgpack.encode(LeasedWrites(7, {b"%d" % n: b"v" for n in range(100)}))
    with pytest.raises(ValueError, match="writes of a command are missing"):
        _decoded(packed[:500])


def _decoded(packed: bytes) -> tuple[LeasedWrites, int]:
    decoding, turns = decode_in_parts(memoryview(packed)), 0
    try:
        while True:
            next(decoding)
            turns += 1
    except StopIteration as stop:
        return stop.value, turns
