"""``begin(retry_id=...)``: another try of a transaction whose outcome is not known."""

from __future__ import annotations

import pytest

import postroom


def test_another_try_at_a_committed_transaction_changes_nothing() -> None:
    with postroom.open(":memory:") as db:
        with db.begin() as tx:
            tx.increment(b"n")
        with db.begin(retry_id=tx.retry_id) as again:
            again.increment(b"n")
        assert again.id == tx.id
        assert again.commit_timestamp == tx.commit_timestamp
        assert postroom.integer(db.get(b"n")) == 1


def test_another_try_at_a_transaction_that_has_not_committed_commits() -> None:
    with postroom.open(":memory:") as db:
        tx = db.begin()
        tx.put(b"k", b"lost")
        tx.rollback()
        with db.begin(retry_id=tx.retry_id) as again:
            again.put(b"k", b"kept")
        assert db.get(b"k") == b"kept"


def test_another_try_is_known_after_the_store_was_opened_again(tmp_path: object) -> None:
    """A leaseholder that has forgotten its clients looks for the COMMIT record."""
    with postroom.open(f"{tmp_path}/data") as db, db.begin() as tx:
        tx.increment(b"n")
    with postroom.open(f"{tmp_path}/data") as db:
        with db.begin(retry_id=tx.retry_id) as again:
            again.increment(b"n")
        assert again.commit_timestamp == tx.commit_timestamp
        assert postroom.integer(db.get(b"n")) == 1


@pytest.mark.parametrize("wrong", [b"", b"short", b"\xff" * 24, b"\x00" * 24, b"\x00" * 25])
def test_bytes_that_are_no_retry_id_are_refused(wrong: bytes) -> None:
    with postroom.open(":memory:") as db, pytest.raises(postroom.Invalid, match="retry_id"):
        db.begin(retry_id=wrong)


def test_a_retry_id_is_bytes() -> None:
    with postroom.open(":memory:") as db, pytest.raises(TypeError, match="retry_id"):
        db.begin(retry_id="text")  # type: ignore[arg-type]
