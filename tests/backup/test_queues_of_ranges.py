"""Backups of queues in several ranges: each message once, and counters that add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest

import postroom
from postroom.backup import restore, verify
from postroom.backup.joining import RangeEntries, joined
from postroom.errors import Invalid
from postroom.kv import keys
from postroom.messaging.queues import records
from postroom.messaging.queues.claiming import QueueEnvironment
from postroom.messaging.queues.records import Holding, QueueLayout
from tests.backup.moves import CUTS

STATES: tuple[Literal["scheduled", "ready", "leased", "dead", "done"], ...] = (
    "scheduled", "ready", "leased", "dead", "done",
)  # fmt: skip
HOMES = ("a", "n", "u")
"""A key in each range."""
EACH = 6
"""The messages of a kind in each range."""


@pytest.fixture
def db() -> Iterator[postroom.Database]:
    with postroom.open(":memory:") as db:
        db.create_queue("jobs", ack_wait=3600.0, purge_after=3600.0, max_attempts=1)
        yield db


@pytest.fixture(autouse=True)
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a restored store take the consumers of the backup for alive.

    An embedded store has messages of strangers given back at once: sooner than they are compared.
    """
    monkeypatch.setattr(QueueEnvironment, "may_be_there", lambda *_: True)


def enqueue(db: postroom.Database, name: str, **options: object) -> None:
    """Enqueue messages in all ranges, in one transaction."""
    with db.begin() as tx:
        for home in HOMES:
            for number in range(EACH):
                id_ = f"{home}/{name}/{number}"
                tx.enqueue("jobs", id_.encode(), id=id_, **options)  # type: ignore[arg-type]


def settle(db: postroom.Database) -> list[postroom.QueueMessage]:
    """Claim messages; acknowledge a third, and bury a third; return the rest, which is held."""
    queue = db.queue("jobs")
    found: list[postroom.QueueMessage] = []
    while len(found) < len(HOMES) * EACH and (more := queue.claim(len(HOMES) * EACH, wait=5.0)):
        found += more
    queue.acknowledge(found[::3])
    queue.reject(found[1::3], reason="broken")
    return found[2::3]


def split(db: postroom.Database) -> None:
    for cut in CUTS:
        db.split(cut)


def found(db: postroom.Database) -> dict[str, Counter[bytes]]:
    """Return the messages by state."""
    queue = db.queue("jobs")
    return {
        state: Counter(each.payload for each in queue.messages(state, 1000)) for state in STATES
    }


def check_restored(db: postroom.Database, folder: Path) -> None:
    """Check that a backup has the same messages, each once, and that they can be handled."""
    db.drain()
    before, stats = found(db), db.queue("jobs").stats()
    assert {n for each in before.values() for n in each.values()} == {1}
    db.backup(folder)
    verify(folder)
    with postroom.open(":memory:") as other:
        restore(other, folder)
        assert found(other) == before
        queue = other.queue("jobs")
        after = queue.stats()
        for name in (*STATES, "enqueued", "fired", "acknowledged", "rejected"):
            assert getattr(after, name) == getattr(stats, name), name
        handled: Counter[bytes] = Counter()
        while handled.total() < stats.ready and (messages := queue.claim(1000, wait=5.0)):
            handled.update(each.payload for each in messages)
            queue.acknowledge(messages)
        assert handled == before["ready"]


def test_messages_of_one_transaction_in_several_ranges_are_restored_once(
    db: postroom.Database, tmp_path: Path
) -> None:
    split(db)
    enqueue(db, "ready")
    enqueue(db, "later", deliver_at=timedelta(hours=1))
    check_restored(db, tmp_path / "full")


def test_halves_of_holdings_and_lists_are_one_again_in_a_restored_store(
    db: postroom.Database, tmp_path: Path
) -> None:
    enqueue(db, "before")
    held = settle(db)
    split(db)
    db.queue("jobs").acknowledge(held[::2])
    enqueue(db, "after")
    settle(db)
    enqueue(db, "left")
    check_restored(db, tmp_path / "full")


def test_groups_in_several_ranges_are_restored(db: postroom.Database, tmp_path: Path) -> None:
    split(db)
    for home in HOMES:
        enqueue(db, f"of {home}", group=home)
    settle(db)
    check_restored(db, tmp_path / "full")


def test_a_queue_that_was_dropped_in_several_ranges_is_not_restored(
    db: postroom.Database, tmp_path: Path
) -> None:
    db.create_queue("dropped")
    split(db)
    enqueue(db, "ready")
    db.queue("dropped").drop()
    db.backup(tmp_path / "full")
    with postroom.open(":memory:") as other:
        restore(other, tmp_path / "full")
        assert [each.name for each in other.queues()] == ["jobs"]


def test_ranges_have_ordinals_of_their_own_which_rise() -> None:
    stamp = bytes(8)
    every = [
        QueueLayout(range_id, 1).seq(stamp, number)
        for range_id in (1, 2, 3, 1 << 16)
        for number in (0, 1, 0xFFFF)
    ]
    assert sorted(set(every)) == every
    assert every[0] == stamp + bytes(4)


def holding_name(number: int) -> bytes:
    layout = QueueLayout(1, 1)
    raw = layout.holding_key(9, layout.seq(bytes(8), number))
    return keys.RANGE + raw[9:]


def holding(consumer: bytes, *ids: bytes) -> bytes:
    entries = [records.Entry(id_, "", id_, bytes(12), 1, 1) for id_ in ids]
    return records.encode(Holding(consumer, 1, 9, b"", 1, entries))


def test_a_mark_on_another_page_than_its_holding_ends_messages() -> None:
    first, second = holding_name(1), holding_name(2)
    of_range = RangeEntries()
    assert of_range.of(([first], [holding(b"c", b"a", b"b")])) == ([], [])
    mark = records.mark_key(first, bytes(8))
    pages = [of_range.of(([mark, second], [records.encode([0]), b"other"])), of_range.rest()]
    assert pages == [([first], [holding(b"c", b"b")]), ([second], [b"other"])]


def test_holdings_of_different_claims_are_not_joined() -> None:
    name = holding_name(1)
    assert joined(name, [holding(b"c", b"a"), holding(b"c", b"b")]) == holding(b"c", b"a", b"b")
    with pytest.raises(Invalid, match="under one name"):
        joined(name, [holding(b"c", b"a"), holding(b"d", b"b")])
