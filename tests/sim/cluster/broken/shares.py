"""Mutations of whose turn it is."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from postroom.ranges.admission import Rounds
from tests.sim.cluster.broken import Patch


def shares_go_by_client() -> Patch:
    """Give a program as many turns as it has sessions."""
    add = Rounds.add

    def add_alone(self: Rounds[Any], principal: Hashable, member: Any) -> None:
        del principal
        add(self, member, member)

    return Rounds, "add", add_alone
