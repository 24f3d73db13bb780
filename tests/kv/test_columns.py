"""Columns as of a timestamp, against what each key was, wherever pages end."""

from __future__ import annotations

from random import Random  # noqa: TID251 (seeded)

import pytest

from postroom.kv import columns, keys
from postroom.kv.engine import WriteSet
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.kv.versions import INTEGER, TOMBSTONE, VALUE

KEYS = [b"", b"\x00", b"\x00\x00", b"a", b"a\x00", b"a\x00\x01", b"a\x00\x01\x01", b"ab", b"\xff",
        b"b\x00\xff", *(b"k%02d" % number for number in range(40))]  # fmt: skip
Row = tuple[bytes, bytes, bytes, int]


def engine_of(writes: WriteSet) -> MemoryEngine:
    engine = MemoryEngine(MemoryDisk())
    engine.write(writes, sync=False)
    return engine


def drawn(random: Random) -> tuple[WriteSet, dict[bytes, list[bytes]]]:
    """Return what is stored, and of each key its versions, the newest first."""
    writes: WriteSet = {}
    known: dict[bytes, list[bytes]] = {}
    for key in random.sample(KEYS, random.randrange(1, len(KEYS))):
        head = keys.head_key(key)
        stamps = sorted(
            random.sample(range(1, 30), random.choice([0, 1, 1, 1, 2, 9])), reverse=True
        )
        versions = [
            bytes([random.choice([VALUE, VALUE, VALUE, INTEGER, TOMBSTONE])])
            + keys.u64(stamp) + random.randbytes(random.choice([0, 3, 40]))
            for stamp in stamps
        ]  # fmt: skip
        for number, version in enumerate(versions):
            writes[keys.history_key(head, version[1:9]) if number else head] = version
        for number in range(random.choice([0, 0, 0, 1, 20])):
            writes[head[:-1] + keys.INBOX + keys.u64(number)] = random.randbytes(60)
        if random.random() < 0.2:  # which looks like a version, by chance
            writes[head[:-1] + keys.ACCOUNTING] = bytes([VALUE]) + keys.u64(7) + b"sums"
        known[key] = versions
    return writes, known


def expected(known: dict[bytes, list[bytes]], at: int, after: int) -> list[Row]:
    rows = []
    for key in sorted(known):
        seen = [version for version in known[key] if int.from_bytes(version[1:9], "big") <= at]
        if seen and seen[0][0] != TOMBSTONE and int.from_bytes(seen[0][1:9], "big") > after:
            rows.append((key, seen[0][9:], seen[0][1:9], seen[0][0]))
    return rows


@pytest.mark.parametrize("seed", range(150))
def test_pages_hold_what_was_there(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr(columns, "_BLOCK_FIRST", random.choice([1, 3, 16]))
    monkeypatch.setattr(columns, "_BLOCK", random.choice([2, 8, 1024]))
    writes, known = drawn(random)
    engine, at, after = engine_of(writes), random.choice([10, 40]), random.choice([0, 5])
    room = columns.PageLimits(random.choice([1, 50, 500, 1 << 20]), random.choice([1, 2, 7, 8192]))
    start: bytes | None = b""
    found: list[Row] = []
    while start is not None:
        bounds = columns.ReadingBounds(start, None, keys.u64(at), keys.u64(after))
        page = columns.as_of(engine, bounds, room)
        found += zip(page.keys, page.payloads, page.stamps, page.kinds, strict=True)
        assert page.steps <= room.steps_max
        assert page.resume is None or page.resume > start
        start = page.resume
    assert found == expected(known, at, after)


def test_keys_with_much_beside_them_are_passed_in_few_steps() -> None:
    writes: WriteSet = {}
    for name in (b"a", b"b", b"c"):
        head = keys.head_key(name)
        writes[head] = bytes([VALUE]) + keys.u64(1)
        for number in range(5000):
            writes[head[:-1] + keys.INBOX + keys.u64(number)] = b""
    bounds = columns.ReadingBounds(b"", None, keys.u64(2))
    page = columns.as_of(engine_of(writes), bounds, columns.PageLimits(1 << 20, 8192))
    assert page.keys == [b"a", b"b", b"c"]
    assert page.steps < 100


def test_a_page_holds_no_more_values_than_it_has_room_for() -> None:
    """The one that is too much is in memory alone, and no other."""
    stored = bytes([VALUE]) + keys.u64(1) + bytes(1000)
    engine = engine_of({keys.head_key(b"%03d" % number): stored for number in range(100)})
    bounds = columns.ReadingBounds(b"", None, keys.u64(2))
    visited = []

    class Counting:
        get = engine.get

        def iterate(self, *span: bytes, reverse: bool = False) -> object:
            for pair in engine.iterate(*span, reverse=reverse):
                visited.append(pair)
                yield pair

    page = columns.as_of(Counting(), bounds, columns.PageLimits(5000, 8192))  # type: ignore[arg-type]
    assert len(page.keys) == 5
    assert len(visited) <= 6
