"""A queue: work that is done later, once, with retries.

An order and the mail about it are one transaction. Two consumers share the mails. One attempt fails
and comes again after a pause; a mail that never works ends as a dead letter, with its reason.

Run it: python examples/queue_emails.py
"""

from __future__ import annotations

import threading

import postroom

ORDERS = 20
BROKEN = b"order 13"


def send_mails(db: postroom.Database) -> None:
    """Send mails: a consumer, which gets messages that no other one gets."""
    for message in db.queue("emails").receive(kinds=["confirmation", "end"], credit=10):
        if message.payload == BROKEN:
            message.reject(delay=0.01, reason="no such address")
            continue
        with db.begin() as tx:  # the result and the acknowledgement are one transaction
            tx.put(b"mailed/" + message.payload, b"attempt %d" % message.epoch)
            tx.acknowledge("emails", message)
        if message.kind == "end":
            break  # messages that were claimed ahead go to the others


def main() -> None:
    with postroom.open(":memory:") as db:
        queue = db.create_queue("emails", ack_wait=30, max_attempts=3)
        consumers = [threading.Thread(target=send_mails, args=(db,)) for _ in range(2)]
        for consumer in consumers:
            consumer.start()

        for number in range(ORDERS):
            with db.begin() as tx:
                order = b"order %d" % number
                tx.put(b"placed/" + order, b"yes")
                tx.enqueue("emails", order, kind="confirmation", id=order)  # once for each order

        while queue.stats().acknowledged < ORDERS - 1 or not queue.dead_letters():
            threading.Event().wait(0.01)
        with db.begin() as tx:
            for _ in consumers:
                tx.enqueue("emails", b"end", kind="end")
        for consumer in consumers:
            consumer.join()

        mailed = [key for key, _ in db.scan(*postroom.prefix(b"mailed/order"))]
        (dead,) = queue.dead_letters()
        print(f"{len(mailed)} mails sent; {dead.id!r} given up: {dead.last_error}")
        assert len(mailed) == ORDERS - 1
        assert dead.payload == BROKEN


if __name__ == "__main__":
    main()
