"""Counters that are busy: deferred increments, and sums for each prefix of a key.

A counter that every transaction changes makes all of them wait for each other. A *deferred*
update is carried out shortly after the commit instead, exactly once, and many of them are added up
into one write. ``Accounting`` adds to a key and to every prefix of it at the separator ``/``.

Run it: python examples/counters.py
"""

from __future__ import annotations

import postroom

VIEWS = [
    ("books", "fiction", 3),
    ("books", "history", 2),
    ("music", "jazz", 4),
    ("books", "fiction", 1),
]


def view(tx: postroom.Transaction, shelf: str, topic: str, seconds: int) -> None:
    """Note that a visitor looked at something for a while."""
    tx.enqueue_update(postroom.Increment(b"views", 1))
    key = f"shop/{shelf}/{topic}".encode()
    tx.enqueue_update(postroom.Accounting(key, {"views": 1, "seconds": seconds}))


def main() -> None:
    with postroom.open(":memory:") as db:
        for shelf, topic, seconds in VIEWS:
            db.run(view, shelf, topic, seconds)
        db.drain()  # waits until everything that was deferred is done

        for prefix in (b"shop", b"shop/books", b"shop/books/fiction"):
            print(f"{prefix.decode():20} {db.accounting(prefix)}")
        assert postroom.integer(db.get(b"views")) == 4
        assert db.accounting(b"shop") == {"views": 4, "seconds": 10}
        assert db.accounting(b"shop/books") == {"views": 3, "seconds": 6}
        assert db.accounting(b"shop/books/fiction") == {"views": 2, "seconds": 4}


if __name__ == "__main__":
    main()
