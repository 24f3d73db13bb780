"""Fixtures of the tests of what is handed over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.messaging.handover.several_ranges import Ranges


@pytest.fixture
def ranges() -> Iterator[Ranges]:
    """Yield two ranges; the second one begins at ``n``."""
    made = Ranges(b"n")
    yield made
    made.close()
