"""The process that is killed: it works on a store as hard as it can, and says what it did.

``python -m tests.crash.writer FOLDER MODE LIFE`` writes one line to standard output *before* each
commit and one *after* it returned. Each takes one ``write`` of the operating system, so that the
parent has every line that was complete when the process died::

    ? name      a transaction is about to commit
    ! name      it has committed

A transaction of a sender writes a note under its name, debits an account, sends the amount to
another one, and defers an increment. A clerk reaps an inbox, credits the account and notes what it
took. Names are unique for ever: they begin with the number of the life.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from random import Random  # noqa: TID251 - made from the life's number
from typing import Any, Final

import postroom
import postroom.aio

ACCOUNTS: Final = 4
OPENING_BALANCE: Final = 1_000_000
SEGMENT_BYTES: Final = 256 * 1024
"""The size of a segment of the log: each life uses some of them again."""
SENDERS: Final = 6
CLERKS: Final = 3


def account(number: int) -> bytes:
    """Return the key of an account, and of its inbox."""
    return b"account/%d" % number


def say(mark: str, name: bytes) -> None:
    """Write one line, at once."""
    os.write(1, b"%s %s\n" % (mark.encode(), name))


class Deed:
    """The work of one transaction of a sender, decided beforehand."""

    def __init__(self, randomness: Random, name: bytes) -> None:
        self.name = name
        self.source, self.target = randomness.sample(range(ACCOUNTS), 2)
        self.amount = randomness.randint(1, 99)
        self.delay = randomness.choice([None, None, None, 0.01])

    def note(self) -> bytes:
        """Return the whole transfer, as it is stored with its name."""
        return b"%d %d %d" % (self.source, self.target, self.amount)

    def send(self, tx: Any, balance: bytes) -> None:
        """Write and send what belongs to a transfer, given the source's balance."""
        tx.put(b"note/" + self.name, self.note())
        tx.put(account(self.source), b"%d" % (int(balance) - self.amount))
        payload = b"%s %d" % (self.name, self.amount)
        tx.enqueue_message(account(self.target), payload, deliver_at=self.delay)
        counter = b"counter/%d" % self.source
        tx.enqueue_update(postroom.Increment(counter, self.amount), execute_at=self.delay)
        tx.enqueue_update(postroom.Accounting(b"sent/%d" % self.source, {"messages": 1}))


def credit(tx: Any, number: int, balance: bytes, reaped: Any) -> None:
    """Write what a clerk writes."""
    total = int(balance)
    for message in reaped:
        name, amount = message.value.split()
        tx.put(b"taken/" + name + b"/" + message.id.encode(), b"%d %s" % (number, amount))
        total += int(amount)
    tx.put(account(number), b"%d" % total)


# --- asyncio --------------------------------------------------------------------------------------


async def run_asyncio(folder: Path, life: int) -> None:
    """Run senders and clerks on one event loop."""
    async with await postroom.aio.open(folder, log_segment_bytes=SEGMENT_BYTES) as db:
        say("!", b"open")
        senders = [_send_for_ever(db, life, number) for number in range(SENDERS)]
        clerks = [_reap_for_ever(db, number) for number in range(CLERKS)]
        await asyncio.gather(*senders, *clerks)


async def _send_for_ever(db: postroom.aio.Database, life: int, number: int) -> None:
    randomness = Random(f"{life} {number}")
    count = 0
    while True:
        count += 1
        deed = Deed(randomness, b"%d-%d-%d" % (life, number, count))

        async def send(tx: Any, deed: Deed = deed) -> None:
            deed.send(tx, await tx.get(account(deed.source)))

        say("?", deed.name)
        await db.run(send)
        say("!", deed.name)


async def _reap_for_ever(db: postroom.aio.Database, clerk: int) -> None:
    number = clerk % ACCOUNTS
    while True:

        async def reap(tx: Any, number: int = number) -> None:
            reaped = await tx.reap_queue(account(number), 20, wait=0.05)
            credit(tx, number, await tx.get(account(number)), reaped)

        await db.run(reap)
        number = (number + 1) % ACCOUNTS


# --- threads --------------------------------------------------------------------------------------


def run_threads(folder: Path, life: int) -> None:
    """Run the clerks, a thread each."""
    db = postroom.open(folder, log_segment_bytes=SEGMENT_BYTES)
    say("!", b"open")
    threads = [
        threading.Thread(target=_send_in_thread, args=(db, life, number), daemon=True)
        for number in range(SENDERS)
    ]
    threads += [
        threading.Thread(target=_reap_in_thread, args=(db, number), daemon=True)
        for number in range(CLERKS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _send_in_thread(db: postroom.Database, life: int, number: int) -> None:
    randomness = Random(f"{life} {number}")
    count = 0
    while True:
        count += 1
        deed = Deed(randomness, b"%d-%d-%d" % (life, number, count))

        def send(tx: Any, deed: Deed = deed) -> None:
            deed.send(tx, tx.get_for_update(account(deed.source)))

        say("?", deed.name)
        db.run(send)
        say("!", deed.name)


def _reap_in_thread(db: postroom.Database, clerk: int) -> None:
    number = clerk % ACCOUNTS
    while True:

        def reap(tx: Any, number: int = number) -> None:
            reaped = tx.reap_queue(account(number), 20, wait=0.05)
            credit(tx, number, tx.get_for_update(account(number)), reaped)

        db.run(reap)
        number = (number + 1) % ACCOUNTS


def main() -> None:
    """Work until the process is killed."""
    folder, mode, life = sys.argv[1:]
    if mode == "asyncio":
        asyncio.run(run_asyncio(Path(folder), int(life)))
    else:
        run_threads(Path(folder), int(life))


if __name__ == "__main__":
    main()
