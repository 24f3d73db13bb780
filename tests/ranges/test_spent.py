"""What is freed over turns: bounded, and all of it."""

from __future__ import annotations

import pytest

from postroom import limits
from postroom.ranges.spent import Spent


@pytest.fixture(autouse=True)
def _small_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMPLETED_AT_ONCE_MAX", 10)


def test_a_turn_frees_no_more_than_its_share() -> None:
    first, second = ({b"%d" % number: None for number in range(count)} for count in (25, 11))
    spent = Spent()
    spent.add(first)
    spent.add(second)
    left = [len(first) + len(second)]
    while spent.left:
        spent.go_on()
        left.append(len(first) + len(second))
    assert left == [36, 26, 25, 15, 5, 0]
    spent.go_on()


def test_small_write_sets_are_not_kept() -> None:
    spent = Spent()
    spent.add(dict.fromkeys([b"%d" % number for number in range(10)]))
    assert not spent.left
