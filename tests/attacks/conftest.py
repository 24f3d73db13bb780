"""A node that is attacked, and its attacker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.hostile import Attacker, Target


@pytest.fixture
def target() -> Iterator[Target]:
    target = Target()
    yield target
    target.store.db.close()


@pytest.fixture
def attacker(target: Target) -> Attacker:
    return Attacker(target, b"attacker")
