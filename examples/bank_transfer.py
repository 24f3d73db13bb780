"""Transfers between accounts: functions that take a transaction, and compose.

``@postroom.transactional`` makes a function that runs in a transaction of its own when it is called
with the database, and joins the transaction when it is called with one. Eight threads transfer at
once; a transaction whose accounts changed under it is run again, and no cent gets lost.

Run it: python examples/bank_transfer.py
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import postroom

ACCOUNTS = 5
START_CENTS = 1000


class Overdrawn(Exception):
    """An exception for too little money in the account."""


@postroom.transactional
def withdraw(tx: postroom.Transaction, number: int, cents: int) -> None:
    """Take ``cents`` out of an account."""
    if tx.increment(b"account/%d" % number, -cents) < 0:
        raise Overdrawn(f"account {number}")


@postroom.transactional
def transfer(tx: postroom.Transaction, source: int, target: int, cents: int) -> None:
    """Move ``cents``, or nothing at all."""
    withdraw(tx, source, cents)  # joins this transaction
    tx.increment(b"account/%d" % target, cents)


def main() -> None:
    with postroom.open(":memory:") as db:
        for number in range(ACCOUNTS):
            db.increment(b"account/%d" % number, START_CENTS)

        def act(turn: int) -> None:
            transfer(db, turn % ACCOUNTS, (turn * 3 + 1) % ACCOUNTS, 5)

        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(act, range(400)))
        try:
            transfer(db, 0, 1, 1_000_000)
        except Overdrawn as error:
            print(f"refused, and nothing moved: {error}")

        cents = [postroom.integer(db.get(b"account/%d" % number)) for number in range(ACCOUNTS)]
        print(f"{cents} make {sum(cents)}")
        assert sum(cents) == ACCOUNTS * START_CENTS


if __name__ == "__main__":
    main()
