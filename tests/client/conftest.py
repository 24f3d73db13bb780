"""Stores to test on: as applications open them, and with everything in the test's hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import postroom
from tests.client.stores import Store
from tests.remote.servers import Server


@pytest.fixture(params=["memory", "disk"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the place of a store."""
    return ":memory:" if request.param == "memory" else str(tmp_path / "store")


@pytest.fixture(params=["memory", "disk", "remote"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[postroom.Database]:
    """Yield a store as applications open it, or connect to it."""
    if request.param == "remote":
        with Server() as server, postroom.connect(server.address, insecure=True) as db:
            yield db
    else:
        path = ":memory:" if request.param == "memory" else str(tmp_path / "store")
        with postroom.open(path) as db:
            yield db


@pytest.fixture(params=["embedded", "remote"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Yield a store in memory, driven by hand: here, or beyond a wire."""
    store = Store(remote=request.param == "remote")
    yield store
    store.db.close()
