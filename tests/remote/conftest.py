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


@pytest.fixture(params=[False, True], ids=["native", "grpc"])
def old(request: pytest.FixtureRequest) -> bool:
    """Whether the node is one of the first release, which speaks gRPC only."""
    which: bool = request.param
    return which


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def either(old: bool) -> Iterator[Server]:
    """A node of either kind."""
    with Server(old=old) as server:
        yield server


@pytest.fixture
def db(server: Server) -> Iterator[postroom.Database]:
    with postroom.connect(server.address, insecure=True) as db:
        yield db
