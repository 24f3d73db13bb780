"""A store whose clock the test moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import postroom
import postroom.aio
import postroom.testing


@pytest.fixture
def store() -> Iterator[postroom.testing.Store]:
    with postroom.testing.Store() as store:
        yield store
