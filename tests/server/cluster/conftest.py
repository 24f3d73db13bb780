"""The addresses of nodes."""

from __future__ import annotations

import pytest

from tests.cluster.places import Loopback


@pytest.fixture
def addresses() -> list[str]:
    place = Loopback()
    return [place.address(number) for number in (1, 2, 3)]
