"""What the tests of the pipeline need: the extra, a served folder, and one session for all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason='pip install "postroom[spark]"')

import postroom
from postroom import pipeline
from postroom.pipeline.driver_service import DriverService
from postroom.server.loopback import LoopbackServer
from tests.pipeline.sessions import start


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of an empty store in ``tmp_path / "store"``."""
    server = LoopbackServer(tmp_path / "store", create=True)
    yield server.address
    server.close()


@pytest.fixture
def db(served: str) -> Iterator[postroom.Database]:
    """Connected to that."""
    with postroom.connect(served, insecure=True) as db:
        yield db


@pytest.fixture
def service() -> Iterator[DriverService]:
    """Of a driver whose Spark does nothing."""
    service = DriverService(lambda: False, time.monotonic)
    yield service
    service.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one session."""
    session = start(tmp_path_factory.mktemp("spark"))
    pipeline.register(session)
    yield session
    pipeline.close()
    session.stop()
