"""Messages over a backup and a restore: each takes effect once, in its order, with its attempts."""

from __future__ import annotations

from pathlib import Path

import pytest

import postroom
from postroom.backup import restore


@pytest.fixture
def restored(tmp_path: Path) -> postroom.Database:
    """Return a store that was restored from a backup, with messages in each state."""
    with postroom.open(":memory:") as db:
        db.create_queue("graves")
        db.create_queue("work", max_attempts=3, dead_letter_queue="graves")
        with db.begin() as tx:
            for number in range(4):
                tx.enqueue_message(b"inbox", b"%d" % number)
                tx.enqueue("work", b"%d" % number, id=f"{number}")
            tx.enqueue_message(b"later", b"scheduled", deliver_at=3600)
            tx.enqueue_update(postroom.Increment(b"later", 5), execute_at=3600)
            tx.put(b"text", b"no number")
            tx.enqueue_update(postroom.Increment(b"text"))
            tx.enqueue("work", b"scheduled", id="scheduled", deliver_at=3600)
        db.drain()
        with db.begin() as tx:
            tx.reap_queue(b"inbox", 1)
        with db.begin() as tx:
            tx.postpone(list(tx.reap_queue(b"inbox", 1)), delay=3600, reason="not yet", hold=True)
        queue = db.queue("work")
        (done, held) = queue.claim(2)
        queue.acknowledge([done])
        claimed = db.begin()  # reaps, and never commits
        assert not claimed.reap_queue(b"inbox", 1)
        db.backup(tmp_path / "full")
        queue.acknowledge([held])
        claimed.rollback()
    other = postroom.open(":memory:")
    restore(other, tmp_path / "full")
    return other


def test_each_message_takes_effect_once_in_a_restored_store(restored: postroom.Database) -> None:
    with restored as db:
        checked = db.images.check()
        assert not checked.wrong
        assert [each.value for each in db.peek(b"inbox")] == [b"2", b"3"]
        assert {each.reason.partition(":")[0] for each in db.dead_letters()} == {"WrongType"}
        scheduled = db.scheduled()
        assert len(scheduled) == 3
        assert not db.peek(b"later")
        assert db.get(b"later") is None
        queue = db.queue("work")
        claimed = {each.id: each.epoch for each in queue.claim(10)}
        assert claimed == {"1": 1, "2": 0, "3": 0}
        assert queue.stats().scheduled == 1
        with db.begin() as tx:  # it was done, and its id is taken
            tx.enqueue("work", b"again", id="0")
        assert not queue.claim(10)


def test_a_consumer_of_the_original_store_cannot_settle_in_the_restored_one(
    tmp_path: Path,
) -> None:
    with postroom.open(":memory:") as db:
        queue = db.create_queue("work")
        with db.begin() as tx:
            tx.enqueue("work", b"job", id="one")
        (held,) = queue.claim(1)
        db.backup(tmp_path / "full")
        queue.acknowledge([held])
    with postroom.open(":memory:") as other:
        restore(other, tmp_path / "full")
        assert other.queue("work").stats().acknowledged == 0
        (again,) = other.queue("work").claim(1, wait=30)
        assert (again.id, again.epoch) == ("one", 1)
