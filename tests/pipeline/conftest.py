"""Fixtures of the pipeline's tests: the extra, a served folder, and one session for all."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.server.loopback import LoopbackServer
from tests.pipeline.sessions import start

collect_ignore_glob = [] if find_spec("pyspark") else ["test_*.py"]
"""The files that are not collected: all tests, without the extra ``[spark]``."""


@pytest.fixture(scope="session", autouse=True)
def _loggers_of_spark() -> None:
    """Let loggers of Spark leave pytest's handler alone.

    pytest adds it to each logger that does not propagate. Spark's loggers would give it their own
    formatter, for all later tests.
    """
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - the extra

    PySparkLogger.addHandler = logging.Logger.addHandler  # type: ignore[method-assign]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """Yield the address of an empty store in ``tmp_path / "store"``."""
    from postroom.pipeline import connections  # noqa: PLC0415 - the extra

    server = LoopbackServer(tmp_path / "store", create=True)
    yield server.address
    server.close()
    for _, store in [*connections._open]:  # a later server may get this port
        if store.connect == server.address:
            connections.close(store)


@pytest.fixture
def db(served: str) -> Iterator[postroom.Database]:
    """Yield a client of that store."""
    with postroom.connect(served, insecure=True) as db:
        yield db


@pytest.fixture
def service() -> Iterator[Any]:
    """Return the service of a driver whose Spark does nothing."""
    from postroom.pipeline.driver_service import DriverService  # noqa: PLC0415 - needs the extra

    service = DriverService(lambda: False, time.monotonic)
    yield service
    service.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield the one session."""
    from postroom import pipeline  # noqa: PLC0415 - needs the extra

    handler = signal.getsignal(signal.SIGINT)
    session = start(tmp_path_factory.mktemp("spark"))
    signal.signal(signal.SIGINT, handler)  # Spark's own would stay for all later tests
    pipeline.register(session)
    yield session
    pipeline.close()
    session.stop()
