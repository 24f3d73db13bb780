"""Receipts: the names of attempts for other processes."""

from __future__ import annotations

import pytest

import postroom


@pytest.mark.parametrize("group", [None, "g"])
def test_a_receipt_names_the_attempt(group: str | None) -> None:
    with postroom.open(":memory:") as db:
        queue = db.create_queue("q")
        with db.begin() as tx:
            tx.enqueue("q", b"payload", id="a", kind="k", key=b"at", group=group)
        [message] = queue.claim(wait=10)
        named = queue.by_receipt(message.receipt)
        assert (named.id, named.kind, named.key, named.group) == ("a", "k", b"at", group or "")
        assert named.receipt == message.receipt
        named.extend(60)
        named.acknowledge()
        assert [each.id for each in queue.messages("done")] == ["a"]
        with pytest.raises(postroom.LeaseLost):
            queue.by_receipt(message.receipt).reject()


def test_a_receipt_settles_a_message_in_a_transaction() -> None:
    with postroom.open(":memory:") as db:
        queue = db.create_queue("q")
        with db.begin() as tx:
            tx.enqueue("q", b"payload")
        [message] = queue.claim(wait=10)
        with db.begin() as tx:
            tx.acknowledge("q", queue.by_receipt(message.receipt))
        assert len(queue.messages("done")) == 1


@pytest.mark.parametrize("wrong", [b"", b"text", b"\x90", b"\xc1", b"\x97" * 40_000])
def test_bytes_that_are_no_receipt_are_refused(wrong: bytes) -> None:
    with postroom.open(":memory:") as db, pytest.raises(postroom.Invalid, match="receipt"):
        db.queue("q").by_receipt(wrong)


def test_the_receipt_of_a_message_that_nobody_holds_is_refused() -> None:
    with postroom.open(":memory:") as db:
        queue = db.create_queue("q")
        with db.begin() as tx:
            tx.enqueue("q", b"payload", deliver_at=3600)
        [message] = queue.messages()
        with pytest.raises(postroom.Invalid, match="receipt"):
            queue.by_receipt(message.receipt)
