"""The rules of divided queues, and a store whose ranges have queues and split step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from postroom.errors import Unavailable
from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.messaging.counters import read_queue_counts
from postroom.messaging.halves import MessagingHalves
from postroom.messaging.queues import dividing, records
from postroom.messaging.queues.cutting import HEAD_BYTES, cut, grown, less, unit_of
from postroom.messaging.queues.dividing import IndexDivision, _divisions, _Index
from postroom.messaging.queues.event_groups import outstanding
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.queues.records import encode, index_in_use
from postroom.ranges.contract import ROOT_ID

HELD_BACK: Final = "held back by the test"


@contextmanager
def divisible(copied_at_once: int = 500) -> Iterator[None]:
    """Let queues be divided so many records a step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dividing, "COPIED_AT_ONCE", copied_at_once)
        patch.setattr(dividing, "KEPT_UP_AT_ONCE", copied_at_once)
        yield


@contextmanager
def held_back() -> Iterator[None]:
    """Keep all splits from taking place."""

    def must_wait(*_: Any) -> bool:
        raise Unavailable(HELD_BACK, retry_after=0.05)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MessagingHalves, "must_wait", must_wait)
        yield


def division_of(reader: Reader, range_id: int) -> IndexDivision | None:
    """Return the division of a range that is under way."""
    stored = reader.get(keys.record_key(range_id, "division"))
    return None if stored is None else _divisions.decode(stored)


def check_copies(reader: Reader, range_id: int = ROOT_ID) -> int:
    """Check that the copies of a range are the halves of what is copied; return their number.

    Raises:
        AssertionError: they are not.
    """
    division = division_of(reader, range_id)
    if division is None:
        return 0
    index = _Index(range_id, index_in_use(reader, range_id))
    left, right = index.other, _Index(division.right_id)
    expected: dict[bytes, bytes] = {}
    more: dict[int, Counter[str]] = {}
    for raw, stored in reader.iterate(*index.records):
        if not division.has_copied(raw) or unit_of(raw) != raw:
            continue
        halves = cut(reader, raw, stored, division.key)
        expected |= {left.twin(raw): halves.left} if halves.left else {}
        expected |= {right.twin(raw): halves.right} if halves.right else {}
        more.setdefault(index.number_in(raw), Counter())[halves.counter] += halves.number
    for raw, stored in reader.iterate(*index.counters):
        if division.has_copied(raw):
            number = int(raw[len(index.counters.lower) :])
            counted = dict(more.get(number, ()))
            counted.pop("", None)
            goes = grown(QueueCounts(), counted)
            stays = less(read_queue_counts(stored), goes)
            assert goes.conserved()
            assert stays.conserved()
            expected[right.counters_of(number)] = encode(goes)
            expected[left.counters_of(number)] = encode(stays)
    found = {
        raw: stored for each in (left, right) for span in each.spans
        for raw, stored in reader.iterate(*span)
    }  # fmt: skip
    assert found == expected, _difference(found, expected)
    return len(found)


def _difference(found: dict[bytes, bytes], expected: dict[bytes, bytes]) -> str:
    more = {key: found[key] for key in found.keys() - expected.keys()}
    missing = {key: expected[key] for key in expected.keys() - found.keys()}
    other = {
        key: (found[key], expected[key]) for key in found.keys() & expected.keys()
        if found[key] != expected[key]
    }  # fmt: skip
    return f"too many: {more}; missing: {missing}; found, and expected: {other}"


# --- the records of an index

_SUBSPACES: Final = {
    keys.SCHEDULED: "scheduled", keys.READY: "ready", keys.LEASED: "leased", keys.DONE: "done",
    keys.ARCHIVED: "archived", keys.DEAD: "dead", keys.GROUPS: "group", keys.TICKS: "tick",
    keys.RESULTS: "result",
}  # fmt: skip


def shown_index(reader: Reader, index: _Index) -> str:
    """Return the messages of an index by their subspaces, those of a holding in brackets."""
    said: dict[str, list[str]] = {}
    for raw, stored in reader.iterate(*index.records):
        subspace = raw[HEAD_BYTES : HEAD_BYTES + 1]
        if subspace in _SUBSPACES and unit_of(raw) == raw:
            said.setdefault(_SUBSPACES[subspace], []).append(_shown(reader, subspace, raw, stored))
    return "; ".join(f"{name} {' '.join(each)}" for name, each in said.items()) or "nothing"


def _shown(reader: Reader, subspace: bytes, raw: bytes, stored: bytes) -> str:
    where = raw[HEAD_BYTES + 1 :]
    if subspace == keys.LEASED:
        held = records.still_held(reader, raw, stored)
        return f"({' '.join(each.id.decode() for each in held)})"
    if subspace in {keys.DONE, keys.ARCHIVED}:
        return " ".join(each.id.decode() for each in records.ended_lists.decode(stored))
    if subspace == keys.GROUPS:
        return f"{keys.unescape(where[:-2]).decode()}={outstanding(stored)}"
    if subspace == keys.TICKS:
        return where.decode()
    if subspace == keys.RESULTS:
        return where[where.index(keys.END_OF_KEY) + 2 :].decode()
    return records.entries.decode(stored).id.decode()
