"""Reminders: messages for later, listed and taken back.

An order that is not paid in a week is closed by a message to the shop. The message is sent with the
order and due a week later. A payment marks the order in a transaction, which decides. Then the
message is taken back, which only tidies up: if that fails, the shop finds a paid order.

Run it: python examples/reminders.py
"""

from __future__ import annotations

import datetime

import postroom

PATIENCE = datetime.timedelta(days=7)
OVERDUE = b"shop/overdue/"


@postroom.transactional
def order(tx: postroom.Transaction, number: bytes) -> None:
    """Take an order, and schedule its reminder."""
    tx.put(b"order/" + number, b"open")
    tx.enqueue_message(OVERDUE + number, number, deliver_at=PATIENCE)


@postroom.transactional
def pay(tx: postroom.Transaction, number: bytes) -> bool:
    """Pay an order; return whether that worked: not if it was closed."""
    if tx.get_for_update(b"order/" + number) != b"open":
        return False
    tx.put(b"order/" + number, b"paid")
    return True


def tidy_up(db: postroom.Database, number: bytes) -> int:
    """Take the reminders of an order back; return how many there were."""
    return db.cancel(each.id for each in db.scheduled(*postroom.prefix(OVERDUE + number)))


def main() -> None:
    with postroom.open(":memory:") as db:
        for number in (b"17", b"18"):
            order(db, number)
        for each in db.scheduled(*postroom.prefix(OVERDUE)):
            print(f"order {each.message.decode()} is overdue on {each.due.datetime:%Y-%m-%d}")
        assert pay(db, b"17")
        assert tidy_up(db, b"17") == 1
        assert tidy_up(db, b"17") == 0  # nothing is left to take back
        assert [each.message for each in db.scheduled()] == [b"18"]
        status = db.status()
        assert (status.pending, status.cancelled, status.dead_letters) == (1, 1, 0)
        print("order 17 is paid in time")


if __name__ == "__main__":
    main()
