"""The store of tests of several ranges."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.stores import Store
from tests.server.splitting import split


@pytest.fixture
def store() -> Iterator[Store]:
    """Return a store with three ranges."""
    made = Store()
    for key in (b"m", b"w"):
        split(made, key)
    yield made
    made.db.close()
