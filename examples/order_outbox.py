"""An order service: it changes an order and says so, in one atomic step.

The classical trouble: write the order to a database, then tell the warehouse through a broker. A
crash in between loses the message, or sends it for an order that was never stored. Here the message
is a part of the transaction: it is sent if, and only if, the order is stored.

Run it: python examples/order_outbox.py
"""

from __future__ import annotations

import json

import postroom

WAREHOUSE = b"warehouse/hamburg"


class OutOfStock(Exception):
    """The customer wants more than there is."""


def place_order(tx: postroom.Transaction, number: int, pieces: int) -> None:
    """Take the pieces from the stock, store the order, tell the warehouse."""
    left = postroom.integer(tx.get_for_update(b"stock"))
    if left < pieces:
        raise OutOfStock(f"{pieces} wanted, {left} left")
    tx.increment(b"stock", -pieces)
    order = json.dumps({"number": number, "pieces": pieces}).encode()
    tx.put(postroom.key("order", number), order)
    tx.enqueue_message(WAREHOUSE, order, headers={"kind": "order-placed"})


def main() -> None:
    with postroom.open(":memory:") as db:
        db.increment(b"stock", 10)
        db.run(place_order, 1, 4)
        db.run(place_order, 2, 6)
        try:
            db.run(place_order, 3, 1)
        except OutOfStock as error:
            print(f"order 3 was refused: {error}")

        db.drain()
        parcels = [json.loads(message.value) for message in db.peek(WAREHOUSE)]
        print(f"the warehouse hears of {parcels}")
        assert [parcel["number"] for parcel in parcels] == [1, 2]  # nothing of order 3
        assert db.get(postroom.key("order", 3)) is None
        assert postroom.integer(db.get(b"stock")) == 0


if __name__ == "__main__":
    main()
