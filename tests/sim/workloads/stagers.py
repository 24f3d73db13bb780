"""Stagers: sinks that stage rows for keys that lie far apart, and are killed at any point.

Each client has a query, and writes one batch after the other. The rows of a batch follow from its
number, as those of a stream do: who takes the place of a client stages them again, under another
job. Rows of attempts that lose are staged, too. Beside them, transactions over the same keys count
as staged increments do, and leave notes.

At the end each row of each published batch has taken effect once. Counts, the last value of each
key, and messages tell, which lie in the order of the rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from random import Random  # noqa: TID251 - made from the number of a batch
from typing import Any, Final

import postroom
from postroom.client.database import CoreDatabase
from postroom.client.staging import packed
from postroom.errors import Invalid
from postroom.messaging.ingest.requests import StageRows
from postroom.messaging.requests import EnqueueMessage
from postroom.ranges.requests import Increment, Put
from tests.sim.workloads.workload import Client, pairs, reap_all

SPOTS: Final = (b"b", b"k", b"y")
QUERIES: Final = (b"c stager", b"l stager", b"z stager")
CHUNKS_MAX: Final = 3
ROWS_MAX: Final = 4


def _count(spot: bytes) -> bytes:
    return spot + b" staged count"


def _last(spot: bytes, query: bytes) -> bytes:
    return spot + b" staged last/" + query


def _box(spot: bytes, query: bytes) -> bytes:
    return spot + b" staged box/" + query


def chunks_of(query: bytes, batch: int) -> list[list[Any]]:
    """Return the rows of a batch, in chunks."""
    chance = Random(f"{query!r} {batch}")
    chunks: list[list[Any]] = []
    for chunk in range(chance.randint(0, CHUNKS_MAX)):
        rows: list[Any] = []
        for row in range(chance.randint(1, ROWS_MAX)):
            spot, name = chance.choice(SPOTS), b"%d-%d-%d" % (batch, chunk, row)
            rows += [Put(_last(spot, query), name), Increment(_count(spot), 1)]
            rows += [EnqueueMessage(_box(spot, query), name)]
        chunks.append(rows)
    return chunks


class Stagers:
    """A workload of staged rows."""

    clients = len(QUERIES)

    async def setup(self, db: CoreDatabase) -> None:
        """Make the counts, so that ranges split there."""

        def begin(tx: Any) -> None:
            for spot in SPOTS:
                tx.put(_count(spot), bytes(8))

        await db.run(begin)

    async def start(self, client: Client) -> None:
        """Write batches, abort some of them, and count beside them."""
        while client.goes_on():
            act = client.random.choice([self._write, self._write, self._abort, self._beside])
            await client.attempt(act(client))
            await client.pause()

    async def _write(self, client: Client) -> None:
        """Write the next batch."""
        query, staging = QUERIES[client.number], client.db.staging
        batch = await _last_batch(client.db, query) + 1
        job, won, lost = (client.random.randbytes(size) for size in (24, 16, 16))
        chunks = chunks_of(query, batch)
        if client.random.random() < 0.3:
            await self._stage(client, batch, job, lost, [[Put(b"staged, and lost", b"1")]])
        await self._stage(client, batch, job, won, chunks)
        with suppress(Invalid):  # a request of the client before this one has been faster
            await staging.publish(query, batch, job, [(won, len(chunks))] if chunks else [])
        if client.random.random() < 0.2:
            await staging.sweep_some(finish=client.random.choice([True, False]))

    async def _stage(
        self, client: Client, batch: int, job: bytes, attempt: bytes, chunks: list[list[Any]]
    ) -> None:
        stream, query = client.db.staging.stream(), QUERIES[client.number]
        for number, rows in enumerate(chunks):
            await stream.send(StageRows(query, batch, job, b"", attempt, number, packed(rows)))
            if client.random.random() < 0.2:
                await client.pause()
        await stream.flush()

    async def _abort(self, client: Client) -> None:
        """Stage something for a batch that is never published."""
        query = QUERIES[client.number]
        batch, job = await _last_batch(client.db, query) + 1, client.random.randbytes(24)
        await self._stage(client, batch, job, bytes(16), [[Put(b"staged, and lost", b"1")]])
        await client.db.staging.abort(query, batch, job)

    async def _beside(self, client: Client) -> None:
        """Count in two ranges, as staged rows do."""
        spots, token = client.random.sample(SPOTS, 2), client.token()

        async def count(tx: Any) -> None:
            for spot in spots:
                number = postroom.integer(await tx.get(_count(spot)))
                tx.put(_count(spot), (number + 1).to_bytes(8, "big", signed=True))
                tx.put(b"staged, beside/" + spot + token, b"")

        await client.db.run(count)

    async def check(self, db: CoreDatabase) -> None:
        """Check that each row of each published batch has taken effect once."""
        await db.staging.sweep()
        await db.drain()
        counts: Counter[bytes] = Counter()
        lasts: dict[bytes, bytes] = {}
        boxes: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for query in QUERIES:
            for batch in range(await _last_batch(db, query) + 1):
                for row in (row for chunk in chunks_of(query, batch) for row in chunk):
                    if isinstance(row, Put):
                        lasts[row.key] = row.value
                    elif isinstance(row, EnqueueMessage):
                        boxes[row.key].append(row.value)
                    else:
                        counts[row.key] += 1
        for spot in SPOTS:
            noted = len(await pairs(db, b"staged, beside/" + spot))
            found, key = postroom.integer(await db.get(_count(spot)) or b""), _count(spot)
            assert found == counts[key] + noted, f"{key!r}: {found}, not {counts[key]} + {noted}"
            for query in QUERIES:
                await self._check_of(db, _last(spot, query), _box(spot, query), lasts, boxes)
        assert await db.get(b"staged, and lost") is None

    async def _check_of(
        self,
        db: CoreDatabase,
        last: bytes,
        box: bytes,
        lasts: dict[bytes, bytes],
        boxes: dict[bytes, list[bytes]],
    ) -> None:
        assert await db.get(last) == lasts.get(last), f"{last!r} is not {lasts.get(last)!r}"
        got = [bytes(message.value) for message in await reap_all(db, box)]
        assert got == boxes[box], f"{box!r}: {got}, not {boxes[box]}"


async def _last_batch(db: CoreDatabase, query: bytes) -> int:
    found = (await db.staging.read(query)).queries[:1]
    return found[0].batch if found and found[0].query == query else -1
