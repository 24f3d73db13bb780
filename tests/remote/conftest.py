"""Stores and nodes to talk to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import postroom
import postroom.aio
from tests.client.stores import Store
from tests.remote.servers import Server


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.db.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def db(server: Server) -> Iterator[postroom.Database]:
    with postroom.connect(server.address, insecure=True) as db:
        yield db
