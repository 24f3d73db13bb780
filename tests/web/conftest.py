"""Fixtures of the tests of the pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.web.visits import Visit, filled


@pytest.fixture
def visit() -> Iterator[Visit]:
    with filled() as db:
        yield Visit(db, payloads=True)
