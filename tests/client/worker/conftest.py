"""A store whose clock the test moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import postroom
import postroom.aio
import postroom.testing
from postroom.messaging import attempts


@pytest.fixture(autouse=True)
def _long_back_offs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make back-offs long: failed messages come when the test moves the clock.

    The clock goes on by itself, too.
    """
    monkeypatch.setattr(attempts, "BACKOFF_SECONDS", 30.0)


@pytest.fixture
def store() -> Iterator[postroom.testing.Store]:
    with postroom.testing.Store() as store:
        yield store
