"""Staged batches and bulk loads on three nodes, whose leaders die half-way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import postroom
from postroom import limits
from postroom.client.commits import repeat_one
from postroom.client.staging import packed
from postroom.messaging.ingest.requests import LoadRows, PublishStaged, StageRows, Winner
from postroom.messaging.requests import EnqueueMessage
from postroom.ranges.requests import Increment, Put
from tests.remote.streams import DatabaseOverStreams
from tests.server.hosting import ThreeNodes

QUERY, JOB, ATTEMPT = b"query", b"j" * 24, b"a" * 16
KEYS = (b"a", b"n", b"z")
ROWS = 10


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreeNodes]:
    """Return three nodes, each of which leads a range; queries lie in the second one."""
    monkeypatch.setattr(limits, "STAGED_STEP_ROWS_MAX", 3)
    made = ThreeNodes(b"m", b"x")
    for number in (1, 2, 3):
        made.lead(number, number)
    yield made
    made.close()


async def stage(db: Any) -> None:
    stream = db.staging.stream()
    for number in range(ROWS):
        rows: list[Any] = [Increment(key + b"/n", 1) for key in KEYS]
        rows += [Put(key, b"%d" % number) for key in KEYS]
        rows += [EnqueueMessage(key, b"%d" % number) for key in KEYS]
        await stream.send(StageRows(QUERY, 0, JOB, b"", ATTEMPT, number, packed(rows)))
    await stream.flush()


@pytest.mark.parametrize("dead", [1, 2, 3])
def test_a_batch_is_applied_once_whatever_leader_dies(nodes: ThreeNodes, dead: int) -> None:
    client = DatabaseOverStreams(nodes)
    client.run(stage(client.db))
    request = PublishStaged(QUERY, 0, JOB, [Winner(ATTEMPT, ROWS)])
    _, more = client.run(repeat_one(client.db._sender, request))
    assert more
    nodes.crash(dead)
    client = DatabaseOverStreams(nodes, seed=4)  # another one
    client.run(client.db.staging.finish(QUERY))
    client.run(client.db.drain(60))
    for key in KEYS:
        assert client.run(client.db.get(key)) == b"%d" % (ROWS - 1)
        assert postroom.integer(client.run(client.db.get(key + b"/n"))) == ROWS
        messages = client.run(client.db.peek(key))
        assert [each.value for each in messages] == [b"%d" % number for number in range(ROWS)]


@pytest.mark.parametrize("dead", [1, 2, 3])
def test_a_load_goes_on_when_a_leader_dies(nodes: ThreeNodes, dead: int) -> None:
    client, run = DatabaseOverStreams(nodes), b"r" * 16
    client.run(client.db.staging.begin_load(b"load", run, b"", None))
    keys = sorted(key + b"%d" % number for key in KEYS for number in range(ROWS))

    async def load(some: list[bytes]) -> None:
        stream = client.db.staging.stream()
        await stream.send(LoadRows(b"load", run, some, [b"1"] * len(some)))
        await stream.flush()

    client.run(load(keys[: ROWS + 5]))
    nodes.crash(dead)
    client = DatabaseOverStreams(nodes, seed=4)  # another one
    client.run(load(keys))
    db = client.db
    assert client.run(db.staging.end_load(b"load", run, b"", None, done=True, keep=True))
    assert client.run(db.staging.begin_load(b"load", b"s" * 16, b"", None))

    async def scanned() -> list[bytes]:
        return [key async for key, _ in db.scan()]

    assert client.run(scanned()) == keys
