"""Lists: transactions read lists and append to them; the lists then tell what order there was.

Elle's method (Kingsbury and Alvaro, VLDB 2020). Every element is appended once and by a known
transaction, so the final lists give, for each list, the order of its writers, and each read shows
after which of them it came. A cycle among these dependencies is an anomaly:

* a writer precedes the next writer of the list (write-write);
* the writer of the last element that was read precedes the reader (write-read);
* the reader precedes the writer of the next element (read-write).
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

from postroom.client.database import Database
from tests.sim.workloads.workload import Client, pairs

LISTS = 4


def _list(number: int) -> bytes:
    return b"list/%d" % number


class Lists:
    """See the module."""

    clients = 4

    def __init__(self) -> None:
        self.reads: dict[bytes, dict[bytes, list[bytes]]] = {}
        """Of each acknowledged transaction: what it read of which lists."""

    async def setup(self, db: Database) -> None:
        """All are empty."""

    async def start(self, client: Client) -> None:
        """Reads some lists, appends to others."""
        while client.goes_on():
            token = client.token()
            reads = await client.attempt(client.db.run(self._read_and_append, client, token))
            if reads is not None:
                self.reads[token] = reads
            await client.pause()

    async def _read_and_append(
        self, tx: Any, client: Client, token: bytes
    ) -> dict[bytes, list[bytes]]:
        numbers = client.random.sample(range(LISTS), client.random.randint(1, 3))
        appends = numbers[: client.random.randint(0, 2)]
        reads = {}
        for number in numbers:
            key = _list(number)
            before = (await tx.get(key) or b"").split()
            reads[key] = before
            if number in appends:
                tx.put(key, b" ".join([*before, token]))
        return reads

    async def check(self, db: Database) -> None:
        """There is an order of the transactions that explains everything."""
        final = {key: value.split() for key, value in await pairs(db, b"list/")}
        follows: dict[bytes, set[bytes]] = defaultdict(set)
        for key, tokens in final.items():
            assert len(set(tokens)) == len(tokens), f"{key!r} has an element twice: {tokens}"
            for earlier, later in pairwise(tokens):
                follows[earlier].add(later)
        for reader, reads in self.reads.items():
            for key, seen in reads.items():
                whole = final.get(key, [])
                assert seen == whole[: len(seen)], f"{reader!r} read {seen}, {key!r} is {whole}"
                if seen:
                    follows[seen[-1]].add(reader)
                if len(seen) < len(whole) and whole[len(seen)] != reader:
                    follows[reader].add(whole[len(seen)])
        _require_order(follows)


def _require_order(follows: dict[bytes, set[bytes]]) -> None:
    """No transaction comes after itself."""
    predecessors: dict[bytes, int] = defaultdict(int)
    for targets in follows.values():
        for target in targets:
            predecessors[target] += 1
    everybody = set(follows) | set(predecessors)
    free = [each for each in everybody if not predecessors[each]]
    placed = 0
    while free:
        placed += 1
        for target in follows.get(free.pop(), ()):
            predecessors[target] -= 1
            if not predecessors[target]:
                free.append(target)
    left = sorted(each for each in everybody if predecessors[each] > 0)
    assert placed == len(everybody), f"these transactions have no order: {left}"
