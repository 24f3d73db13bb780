"""A store that lives many short lives, each ended by ``SIGKILL``, and what must be true after each.

The parent starts a writer (:mod:`tests.crash.writer`), reads what it says, kills it at a random
moment, opens the store itself and checks:

* every commit that was acknowledged is there; of the others that were begun, all or nothing;
* nothing is there that was never begun;
* each message is exactly once in an inbox, in an outbox, or among what the clerks have taken;
* the accounts hold what the notes make of them, and so do the counters and the accounting;
* the store's own numbers add up, and nothing is dead.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import IO, Final

import postroom
from postroom.kv.engine_folder import EngineName
from tests.crash.writer import ACCOUNTS, OPENING_BALANCE, SEGMENT_BYTES, account

START_SECONDS_MAX: Final = 60.0
REPOSITORY: Final = Path(__file__).parents[2]


class Lives:
    """A store that lives many short lives, each ended by ``SIGKILL``.

    Args:
        folder: where the store lies.
        randomness: for the moments of death.
        alive_seconds: how long a life lasts at most, once the store is open.
    """

    def __init__(self, folder: Path, randomness: Random, alive_seconds: float = 0.3) -> None:
        self.folder = folder
        self.random = randomness
        self.alive_seconds = alive_seconds
        self.acknowledged: set[bytes] = set()
        self.begun: set[bytes] = set()
        self.lives = 0
        self.outcomes: Counter[str] = Counter()

    def set_up(self, engine: EngineName | None = None) -> None:
        """Open the accounts, in a store that ``engine`` writes from now on."""
        with (
            postroom.open(self.folder, engine=engine, log_segment_bytes=SEGMENT_BYTES) as db,
            db.begin() as tx,
        ):
            for number in range(ACCOUNTS):
                tx.put(account(number), b"%d" % OPENING_BALANCE)

    def live_and_die(self, mode: str) -> None:
        """Let a writer live one life, and note what it has said."""
        self.lives += 1
        with subprocess.Popen(
            [sys.executable, "-m", "tests.crash.writer", self.folder, mode, str(self.lives)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as writer:
            assert writer.stdout is not None
            assert writer.stderr is not None
            said, died_by_itself = self._listen(writer, writer.stdout)
            writer.kill()
            said += writer.stdout.read()
            error = writer.stderr.read().decode()
        assert not died_by_itself, error
        assert writer.returncode == -signal.SIGKILL
        assert not error, error
        self._note(said)

    def _listen(self, writer: subprocess.Popen[bytes], said: IO[bytes]) -> tuple[bytes, bool]:
        """Return what the writer says until its death, and whether it ended before that."""
        os.set_blocking(said.fileno(), False)
        heard = b""
        give_up = time.monotonic() + START_SECONDS_MAX
        death: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(said, selectors.EVENT_READ)
            while True:
                left = (give_up if death is None else death) - time.monotonic()
                if left <= 0:
                    assert death is not None, "the writer did not open the store"
                    os.set_blocking(said.fileno(), True)
                    return heard, False
                if selector.select(left):
                    more = said.read(1 << 16)
                    if not more:
                        writer.wait()
                        return heard, True
                    heard += more
                if death is None and heard:
                    death = time.monotonic() + self.random.random() * self.alive_seconds

    def _note(self, said: bytes) -> None:
        for line in said.split(b"\n")[:-1]:
            mark, name = line.split()
            if name == b"open":
                continue
            self.begun.add(name)
            if mark == b"!":
                self.acknowledged.add(name)

    # --- checks

    def check(self) -> None:
        """Raise ``AssertionError`` unless everything is as it must be."""
        with postroom.open(self.folder, log_segment_bytes=SEGMENT_BYTES) as db:
            self._check_conservation(db)
            db.drain()
            with db.snapshot() as snapshot:
                notes = _under(snapshot, b"note/")
                taken = _under(snapshot, b"taken/")
                balances = _under(snapshot, b"account/")
                counters = _under(snapshot, b"counter/")
                inboxes = [
                    (number, message)
                    for number in range(ACCOUNTS)
                    for message in snapshot.peek(account(number), 1_000_000)
                ]
            accounting = {
                number: db.accounting(b"sent/%d" % number).get("messages", 0)
                for number in range(ACCOUNTS)
            }
            assert db.dead_letters() == []
        self._check_notes(set(notes))
        self._check_sums(notes, taken, balances, inboxes)
        self._check_deferred(notes, counters, accounting)

    def _check_conservation(self, db: postroom.Database) -> None:
        status = db.status()
        gone = status.delivered + status.executed + status.dead
        assert status.enqueued == gone + status.pending, f"{status} does not add up"

    def _check_notes(self, found: set[bytes]) -> None:
        lost = self.acknowledged - found
        assert not lost, f"acknowledged, and lost: {sorted(lost)[:5]}"
        made_up = found - self.begun
        assert not made_up, f"never begun: {sorted(made_up)[:5]}"
        unknown = self.begun - self.acknowledged
        self.outcomes = Counter(
            acknowledged=len(self.acknowledged),
            survived=len(unknown & found),
            vanished=len(unknown - found),
        )

    def _check_sums(
        self,
        notes: dict[bytes, bytes],
        taken: dict[bytes, bytes],
        balances: dict[bytes, bytes],
        inboxes: list[tuple[int, postroom.Message]],
    ) -> None:
        expected = {account(number): OPENING_BALANCE for number in range(ACCOUNTS)}
        sent: Counter[tuple[bytes, int, int]] = Counter()
        for name, note in notes.items():
            source, target, amount = map(int, note.split())
            expected[account(source)] -= amount
            sent[name, target, amount] += 1
        arrived: Counter[tuple[bytes, int, int]] = Counter()
        for key, note in taken.items():
            number, amount = map(int, note.split())
            expected[account(number)] += amount
            arrived[key.split(b"/")[0], number, amount] += 1
        for number, message in inboxes:
            name, payload = message.value.split()
            arrived[name, number, int(payload)] += 1
        lost, doubled = sent - arrived, arrived - sent
        assert not lost, f"lost messages: {sorted(lost)[:5]}"
        assert not doubled, f"doubled messages, or of nobody: {sorted(doubled)[:5]}"
        found = {b"account/" + name: int(balance) for name, balance in balances.items()}
        assert found == expected, f"the accounts hold {found}, not {expected}"

    def _check_deferred(
        self, notes: dict[bytes, bytes], counters: dict[bytes, bytes], accounting: dict[int, int]
    ) -> None:
        sums: Counter[int] = Counter()
        numbers: Counter[int] = Counter()
        for note in notes.values():
            source, _, amount = map(int, note.split())
            sums[source] += amount
            numbers[source] += 1
        found = {int(name): postroom.integer(value) for name, value in counters.items()}
        assert found == dict(sums), f"the counters say {found}, not {dict(sums)}"
        told = {number: seen for number, seen in accounting.items() if seen}
        assert told == dict(numbers), f"accounting says {told}, not {dict(numbers)}"


def _under(snapshot: postroom.Snapshot, prefix: bytes) -> dict[bytes, bytes]:
    found = snapshot.scan(prefix, prefix + b"\xff")
    return {key.removeprefix(prefix): value for key, value in found}
