"""Trials: messages that their consumers cannot digest. They postpone, bury, give back, vanish.

Senders note what they send. A reaper says how many attempts there are, and does with each message
one of these things. It is done, which is noted. It is postponed, which is noted too, in the
transaction that does it: the number of notes is the number of attempts that were told. It is
buried; it is given back; or nothing is heard of it any more.

While it runs:

* A message shows as many attempts as are noted, at least; more only if somebody may have vanished.
* None comes back before its time, and none has had all its attempts.
* In one of the inboxes a postponed message holds up later ones: nobody is given these meanwhile.

At the end each message that was sent is in one place. The dead ones have had all their attempts, or
were buried by somebody.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final

from postroom.client.database import CoreDatabase
from postroom.client.values import Message
from postroom.kv.clock import from_seconds
from tests.sim.workloads.workload import Client, pairs, reap_all

HELD: Final = b"trial/held"
PASSED: Final = b"trial/passed"
SENDERS: Final = 1
ATTEMPTS_MAX: Final = 3


class Trials:
    """A workload of messages that cannot be digested."""

    clients = 4

    def __init__(self) -> None:
        self._not_before: dict[str, int] = {}
        """The times when messages may come again, by the reason that was given."""
        self._holds: dict[str, int] = {}
        """The times when a postponed message of the inbox that is held up may come again."""
        self._handed_out: Counter[str] = Counter()
        """The hand-outs of a message to those who have not said what became of it."""
        self._unanswered: Counter[bytes] = Counter()
        """The number of reaps of an inbox that may have taken messages that nobody has seen."""

    async def setup(self, db: CoreDatabase) -> None:
        """Set up nothing: nothing was sent."""

    async def start(self, client: Client) -> None:
        """Send with the first client, try with the others."""
        while client.goes_on():
            if client.number < SENDERS:
                await client.attempt(client.db.run(self._send, client, client.token()))
                await client.pause(0.1)
            elif client.random.random() < 0.15:
                await client.attempt(self._vanish(client))
            else:
                await client.attempt(self._try(client))
            await client.pause()

    def _send(self, tx: Any, client: Client, token: bytes) -> None:
        for number in range(client.random.randint(1, 3)):
            name = b"%s-%d" % (token, number)
            delay = client.random.choice([None, None, 0.05])
            tx.enqueue_message(client.random.choice([HELD, PASSED]), name, deliver_at=delay)
            tx.put(b"trial sent/" + name, b"")

    # --- trying

    async def _reap(
        self, tx: Any, client: Client, key: bytes, timeout: float = math.inf
    ) -> list[Message]:
        choose, monotonic = client.random.choice, client.db._sender.monotonic
        holds, now = dict(self._holds), 0
        self._unanswered[key] += 1
        began = monotonic()
        most, wait = choose([1, 2, 5]), choose([None, 0.05])
        found = list(await tx.reap_queue(key, most, wait=wait, max_attempts=ATTEMPTS_MAX))
        self._handed_out.update(message.id for message in found)
        if (found or wait is None) and monotonic() - began < timeout:
            # In this step: the messages may be lost while this client waits for what follows. A
            # reap that waited in vain may have been answered too late, and take them along. It does
            # so too if its process ends soon after its transaction (embedded seed 240129). One that
            # lasts longer than its transaction may take others again (embedded seed 18).
            self._unanswered[key] -= 1
        now = await client.db.now()
        for message in found:
            self._check(message, now, holds if key == HELD else {})
        assert len(found) <= 1 or not any(message.attempts for message in found), "not alone"
        return found

    def _check(self, message: Message, now: int, holds: dict[str, int]) -> None:
        assert message.attempts < ATTEMPTS_MAX, f"{message} has no attempts left"
        first = self._not_before.get(message.last_error, 0)
        assert message.delivered_at >= first, f"{message} came before {first}"
        for other, until in holds.items():
            assert message.id <= other or now >= until, f"{message} was given in spite of {other}"

    async def _try(self, client: Client) -> None:
        tx = client.db.begin()
        async with tx:
            key = client.random.choice([HELD, PASSED])
            found = await self._reap(tx, client, key)
            ends = [await self._end(tx, client, message, key) for message in found]
            if client.random.random() < 0.1:
                await tx.rollback()
                ends = [("back", 0)] * len(found)
        for message, (end, noted) in zip(found, ends, strict=True):
            if end != "back":
                # A client that lost it may have put it back after its next hand-out (cluster seed
                # 82). Then this has not committed, whatever it has done with the message.
                assert noted <= message.attempts, f"{message} was postponed {noted} times"
                self._handed_out[message.id] -= 1
            if end.startswith("held"):
                self._holds[message.id] = self._not_before[end]

    async def _end(self, tx: Any, client: Client, message: Message, key: bytes) -> tuple[str, int]:
        """Return what becomes of it, and how often it was postponed before."""
        failed = b"trial failed/%s/" % message.value
        noted = [found async for found, _ in tx.scan(failed, failed + b"\xff")]
        maybe = self._handed_out[message.id] - 1 + self._unanswered[key]
        told = f"{message} was postponed {len(noted)} times, and lost {maybe} times at most"
        assert message.attempts <= len(noted) + maybe, told
        end = client.random.choice(["done", "done", "later", "later", "later", "buried"])
        if end == "done":
            tx.put(b"trial done/%s/%s" % (message.value, client.token()), b"")
        elif end == "buried":
            tx.bury(message, "no use")
            tx.put(b"trial buried/" + message.value, b"")
        else:
            delay = client.random.choice([0.0, 0.03, 0.3, None])
            seconds = 0.9 * 2**message.attempts if delay is None else delay
            due = await client.db.now() + from_seconds(seconds)
            is_held = key == HELD and delay != 0 and message.attempts + 1 < ATTEMPTS_MAX
            end = f"{'held' if is_held else 'later'} {client.token().decode()}"
            self._not_before[end] = due
            tx.postpone(message, delay, end, hold=key == HELD)
            tx.put(failed + client.token(), b"")
        return end, len(noted)

    async def _vanish(self, client: Client) -> None:
        """Take some messages, and vanish without a word."""
        timeout = client.random.choice([0.05, 0.5])
        tx = client.db.begin(timeout=timeout)
        await self._reap(tx, client, client.random.choice([HELD, PASSED]), timeout)
        await client.pause(0.2)

    # --- at the end

    async def check(self, db: CoreDatabase) -> None:
        """Check that each message is in one place, and that those that are dead had to die."""
        left: list[Message] = []
        while True:
            left += [message for key in (HELD, PASSED) for message in await reap_all(db, key)]
            waiting = await db.scheduled(b"trial/", b"trial0", limit=1000)
            if not waiting:
                break
            wait = max(each.due for each in waiting) - await db.now()
            await db._sender.sleep(max(wait, 0) / 2**16 / 1000 + 0.05)
            await db.drain()
        # This reap does not say how many attempts there are: the last one may have been lost.
        assert all(message.attempts <= ATTEMPTS_MAX for message in left), left
        buried = {key.split(b"/")[1] for key, _ in await pairs(db, b"trial buried/")}
        dead = [
            letter for letter in await db.dead_letters(limit=10_000) if letter.key[:6] == b"trial/"
        ]
        for letter in dead:
            if letter.message in buried:
                assert letter.reason == "no use", letter
            else:
                assert letter.attempts == ATTEMPTS_MAX, letter
                assert letter.reason, letter
        sent = [key.split(b"/")[1] for key, _ in await pairs(db, b"trial sent/")]
        done = [key.split(b"/")[1] for key, _ in await pairs(db, b"trial done/")]
        there = [*done, *(each.value for each in left), *(letter.message for letter in dead)]
        assert sorted(there) == sorted(sent), f"sent: {sent}, done: {done}, {left}, {dead}"
