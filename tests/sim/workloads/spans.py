"""Spans: many keys written and deleted at a time, large values and headers, wide sums.

Each client has a span of its own. A transaction puts a few keys into it, and now and then defers a
``DeleteRange`` of all of it, followed by a ``Put`` into it. When everything is carried out, the
keys from before are gone, and the ``Put``, which comes after, is there. Keys that were written
after the deletion was committed may be there or not: it may have begun late. A note tells which is
which.

Now and then a client deletes another span at once, and counts.
"""

from __future__ import annotations

from typing import Any

from postroom.client.database import CoreDatabase
from postroom.limits import HEADERS_BYTES_MAX, PREFIXES_MAX, VALUE_BYTES_MAX
from postroom.ranges.requests import Accounting, DeleteRange, Put
from tests.sim.workloads.workload import Client, pairs, reap_all

KEYS_MAX = 12
INBOX = b"spans/inbox"
DEEP = b"/".join([b"deep"] * PREFIXES_MAX)


class Spans:
    """A workload of spans that are written and deleted as a whole."""

    clients = 2

    async def setup(self, db: CoreDatabase) -> None:
        """Set up nothing."""

    async def start(self, client: Client) -> None:
        """Put and delete."""
        while client.goes_on():
            if client.random.random() < 0.8:
                await client.attempt(client.db.run(self._write, client, client.token()))
            else:
                await client.attempt(self._delete_at_once(client))
            await client.pause()

    async def _write(self, tx: Any, client: Client, token: bytes) -> None:
        choose = client.random
        span = b"span/%d/" % client.number
        mark = b"mark/%d" % client.number
        kept, _, since = ((await tx.get(mark)) or b"|").partition(b"|")
        for number in range(choose.randint(1, KEYS_MAX)):
            tx.put(span + token + b"-%d" % number, self._value(client))
        if choose.random() < 0.4:
            tx.enqueue_update(DeleteRange(span, span + b"\xff"))
            tx.enqueue_update(Put(span + b"kept-" + token, token))
            kept, since = token, b""
        else:
            since += b" " + token
        if choose.random() < 0.1:
            headers = {"large": "h" * (HEADERS_BYTES_MAX - 100)}
            tx.enqueue_message(INBOX, token, headers=headers)
            tx.put(b"spans/sent/" + token, b"")
        if choose.random() < 0.1:
            tx.enqueue_update(Accounting(DEEP, {f"metric {n}": 1 for n in range(8)}))
            tx.put(b"spans/summed/" + token, b"")
        tx.put(mark, kept + b"|" + since)

    def _value(self, client: Client) -> bytes:
        if client.random.random() < 0.01:
            return bytes(client.random.choice([VALUE_BYTES_MAX, 50_000]))
        return b"v"

    async def _delete_at_once(self, client: Client) -> None:
        """Delete keys that nobody else writes, so that it is known how many there are."""
        start = b"once/%d/%d/" % (client.number, client.life)
        end = start + b"\xff"

        def put(tx: Any) -> None:
            for number in range(client.random.randint(1, KEYS_MAX)):
                tx.put(start + b"%d" % number, b"v")

        await client.db.run(put)
        before = len([pair async for pair in client.db.scan(start, end)])
        deleted = await client.db.delete_range(start, end)
        assert deleted == before, f"{deleted} of {before} were deleted"

    async def check(self, db: CoreDatabase) -> None:
        """Check that keys from before the last deletion are gone, and that later ones are there."""
        await db.drain()
        for number in range(self.clients):
            kept, _, since = ((await db.get(b"mark/%d" % number)) or b"|").partition(b"|")
            span = b"span/%d/" % number
            left = {key.removeprefix(span) for key, _ in await pairs(db, span)}
            if kept:
                assert b"kept-" + kept in left, f"what was put after {kept!r} is gone"
                left.remove(b"kept-" + kept)
            tokens = {name.rpartition(b"-")[0] for name in left}
            assert tokens <= set(since.split()), f"{tokens} are left, since: {since!r}"
        sent = {key.rpartition(b"/")[2] for key, _ in await pairs(db, b"spans/sent/")}
        taken = [message.value for message in await reap_all(db, INBOX)]
        assert sorted(taken) == sorted(sent)
        summed = len(await pairs(db, b"spans/summed/"))
        for prefix in (b"deep", DEEP):
            assert (await db.accounting(prefix)).get("metric 7", 0) == summed
