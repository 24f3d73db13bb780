"""A timestamp moves only while one range has kept all locks of the transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import postroom
from postroom.errors import TransactionConflict
from postroom.ranges.requests import GetForUpdate
from tests.client.stores import Store
from tests.server.splitting import split

LEFT, MIDDLE, RIGHT = b"a", b"m", b"z"


@pytest.fixture
def db() -> Iterator[postroom.Database]:
    with postroom.open(":memory:") as made:
        for key in (LEFT, MIDDLE, RIGHT):
            made.put(key, b"before")
        yield made


def test_a_read_is_not_moved_over_a_change_of_a_key_whose_lock_a_split_has_ended(
    db: postroom.Database,
) -> None:
    tx = db.begin()
    assert tx.get_for_update(RIGHT) == b"before"
    db.split(MIDDLE)
    db.put(RIGHT, b"after")
    db.put(LEFT, b"after")
    with pytest.raises(TransactionConflict):
        tx.get_for_update(LEFT)
    tx.rollback()


def test_a_lock_of_after_a_split_does_not_vouch_for_one_of_before(db: postroom.Database) -> None:
    tx = db.begin()
    assert tx.get_for_update(RIGHT) == b"before"
    db.split(MIDDLE)
    assert tx.get_for_update(LEFT) == b"before"
    db.put(RIGHT, b"after")
    db.put(LEFT + b"2", b"after")
    with pytest.raises(TransactionConflict):
        tx.get_for_update(LEFT + b"2")
    tx.rollback()


def test_a_timestamp_still_moves_for_locks_of_after_a_split(db: postroom.Database) -> None:
    db.split(MIDDLE)
    with db.begin() as tx:
        assert tx.get_for_update(LEFT) == b"before"
        db.put(LEFT + b"2", b"after")
        assert tx.get_for_update(LEFT + b"2") == b"after"


def test_a_range_is_not_asked_to_move_a_timestamp_if_another_one_has_a_lock() -> None:
    store, asked = Store(), list[bool]()
    split(store, MIDDLE)
    send = store.driver.send

    def noted(request: object, timeout_seconds: float | None = None) -> object:
        if type(request) is GetForUpdate:
            asked.append(request.moves)
        return send(request, timeout_seconds)

    store.driver.send = noted  # type: ignore[method-assign, assignment]
    with store.db.begin() as tx:
        for key in (LEFT, LEFT + b"2", RIGHT, RIGHT + b"2"):
            tx.get_for_update(key)
    assert asked == [True, True, False, False]
    store.db.close()
