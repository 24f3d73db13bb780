"""The same program on a folder and on a cluster: only the first line differs.

A shop takes orders and a warehouse ships them. ``place`` and ``ship`` are given a database and do
not ask what is behind it. Run it with the addresses of a cluster, and it works over the network;
without, in memory.

Run it: postroom cluster --nodes 3, and then, with the addresses that it prints,
python examples/remote_shop.py 127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403
"""

from __future__ import annotations

import sys

import postroom


@postroom.transactional
def place(tx: postroom.Transaction, order: int) -> None:
    """Store an order, count it, and tell the warehouse; or do none of that."""
    tx.put(postroom.key("order", order), b"placed")
    tx.enqueue_message(b"warehouse", b"%d" % order)
    tx.enqueue_update(postroom.Increment(b"orders/placed"))


@postroom.transactional
def ship(tx: postroom.Transaction) -> int:
    """Ship the oldest orders that no other worker ships just now; return how many."""
    shipped = 0
    for message in tx.reap_queue(b"warehouse", 10):
        tx.put(postroom.key("order", int(message.value)), b"shipped")
        shipped += 1
    return shipped


def work(db: postroom.Database, orders: int) -> int:
    """Place some orders, ship all of them, and return how many."""
    for order in range(orders):
        place(db, order)
    shipped = 0
    while some := ship(db):
        shipped += some
    db.drain()
    return shipped


def main(addresses: str | None) -> None:
    opened = (
        postroom.open(":memory:")
        if addresses is None
        else postroom.connect(addresses, insecure=True, timeout=10.0)
    )
    with opened as db:
        before = postroom.integer(db.get(b"orders/placed"))
        shipped = work(db, 25)
        placed = postroom.integer(db.get(b"orders/placed")) - before
        print(f"placed {placed}, shipped {shipped}, under way {db.status().pending}")
        assert placed == shipped == 25


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
