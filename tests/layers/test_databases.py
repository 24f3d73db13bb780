"""The databases that applications get have the calls of the layers."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import postroom
import postroom.aio
import postroom.testing
from postroom import limits
from postroom.client import sync
from postroom.layers.search import limits as search_limits
from postroom.server import embedded
from tests.remote.servers import Server


def test_each_way_to_a_database_leads_to_the_calls_of_the_layers() -> None:
    with postroom.open(":memory:") as db:
        assert type(db) is postroom.Database
        assert type(db.core) is postroom.aio.Database
        assert type(db.core.as_stored()) is postroom.aio.Database
        assert type(db.core.through(db.core.sender)) is postroom.aio.Database
    with postroom.testing.open() as db:
        assert type(db) is postroom.Database
    with Server() as server, postroom.connect(server.address, insecure=True) as db:
        assert type(db) is postroom.Database


def test_each_way_to_an_asyncio_database_leads_to_the_calls_of_the_layers() -> None:
    async def types(address: str) -> list[type]:
        found = []
        for opening in (
            postroom.aio.open(":memory:"),
            postroom.testing.open_async(),
            postroom.aio.connect(address, insecure=True),
        ):
            async with await opening as db:
                found.append(type(db))
        return found

    with Server() as server:
        assert asyncio.run(types(server.address)) == [postroom.aio.Database] * 3


def test_open_keeps_its_arguments_and_its_documentation() -> None:
    assert inspect.signature(postroom.open) == inspect.signature(embedded.open)
    assert inspect.getdoc(postroom.open) == inspect.getdoc(embedded.open)
    assert inspect.iscoroutinefunction(postroom.aio.open)


def test_a_layer_runs_coroutines_over_the_asyncio_forms() -> None:
    async def doubled(tx: postroom.aio.Transaction, key: bytes) -> bytes:
        stored = tx.packed(key, [1])
        tx.put(key, [1])
        assert await tx.as_stored().get(key) == stored
        return stored + stored

    with postroom.open(":memory:", codec="json") as db, db.begin() as tx:
        assert type(tx) is sync.Transaction
        assert db.wait(doubled(tx.core, b"a")) == b"[1][1]"


def test_a_transaction_may_be_given_by_name_to_a_search_index() -> None:
    with postroom.open(":memory:") as db:
        index: Any = db.create_search_index("wines", b"wine/")
        with db.begin() as tx:
            index.put(tx, b"wine/1", b"red wine")
            index.put(tx=tx, key=b"wine/2", document=b"white wine")
        assert len(index.search("wine", consistent=True)) == 2


def test_the_limits_of_search_are_those_of_the_store() -> None:
    assert search_limits.RECORD_BYTES_MAX == limits.VALUE_BYTES_MAX
    assert search_limits.TRANSACTION_BYTES_MAX == limits.TRANSACTION_BYTES_MAX
