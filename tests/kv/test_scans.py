"""A page of a scan goes through a bounded number of entries, whatever lies between its keys."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.kv import keys, versions
from postroom.kv.engine import WriteSet
from postroom.kv.memory import MemoryEngine
from tests.kv.test_gaps import Counting

NOW = keys.u64(1 << 40)
STEPS_MAX = 200
VALUE = versions.VALUE_KIND + keys.u64(1) + b"v"


@pytest.fixture
def engine() -> Counting:
    """Return an engine with two keys, and many inboxes of keys without values between them."""
    made = Counting()
    writes: WriteSet = {keys.head_key(key): VALUE for key in (b"a", b"z")}
    for number in range(3000):
        for at in range(1 + number % 9):
            writes[keys.inbox_prefix(b"m%06d" % number) + keys.u64(at)] = b"message"
    made.write(writes, sync=False)
    return made


@pytest.mark.parametrize("reverse", [False, True])
def test_messages_between_keys_count_as_steps(engine: Counting, reverse: bool) -> None:
    start, end, found, pages = b"", None, list[bytes](), 0
    while True:
        before, pages = engine.visited, pages + 1
        page = versions.scan(
            engine, start, end, NOW, pairs_max=10, bytes_max=1000, reverse=reverse,
            steps_max=STEPS_MAX,
        )  # fmt: skip
        assert engine.visited - before <= STEPS_MAX + 10
        assert page.steps >= engine.visited - before - 10
        found += [key for key, _ in page.pairs]
        if page.resume is None:
            break
        assert page.resume != (end if reverse else start), "it goes on"
        start, end = (start, page.resume) if reverse else (page.resume, end)  # type: ignore[assignment]
    assert found == ([b"z", b"a"] if reverse else [b"a", b"z"])
    assert pages > 10


@pytest.mark.parametrize("walk", [versions.changed_since, versions.changes])
def test_messages_between_keys_are_told_as_steps(engine: Counting, walk: Any) -> None:
    before = engine.visited
    told = list(walk(engine, b"", None, keys.u64(0)))
    assert len(told) > 0.75 * (engine.visited - before) > 1000
    assert sum(each is not None for each in told) == 2


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps_max", range(1, 13))
def test_pages_that_end_among_messages_have_each_key_once(steps_max: int, reverse: bool) -> None:
    engine = MemoryEngine()
    writes: WriteSet = {}
    expected = list[bytes]()
    for number in range(12):
        key = b"k%02d" % number
        if number % 4 != 3:
            is_deleted = number % 4 == 2
            tombstone = versions.TOMBSTONE_KIND + VALUE[1:9]
            writes[keys.head_key(key)] = tombstone if is_deleted else VALUE
            expected += [] if is_deleted else [key]
        for at in range(3 * (number % 4)):
            writes[keys.inbox_prefix(key) + keys.u64(at)] = b"message"
    engine.write(writes, sync=False)
    start, end, found = b"", None, list[bytes]()
    while True:
        page = versions.scan(
            engine, start, end, NOW, pairs_max=10, bytes_max=1000, reverse=reverse,
            steps_max=steps_max,
        )  # fmt: skip
        found += [key for key, _ in page.pairs]
        if page.resume is None:
            break
        assert page.resume != (end if reverse else start), "it goes on"
        start, end = (start, page.resume) if reverse else (page.resume, end)  # type: ignore[assignment]
    assert found == (expected[::-1] if reverse else expected)
