"""Freeing of write sets over turns: a bounded part in each, and in the end all."""

from __future__ import annotations

import pytest

from postroom import limits
from postroom.ranges.calls import Freeing


@pytest.fixture(autouse=True)
def _small_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMPLETED_AT_ONCE_MAX", 10)


def test_a_turn_frees_no_more_than_its_share() -> None:
    first, second = ({b"%d" % number: None for number in range(count)} for count in (25, 11))
    freeing = Freeing()
    freeing.add(first)
    freeing.add(second)
    left = [len(first) + len(second)]
    while freeing.left:
        freeing.go_on()
        left.append(len(first) + len(second))
    assert left == [36, 26, 25, 15, 5, 0]
    freeing.go_on()


def test_a_small_write_set_is_not_kept() -> None:
    freeing = Freeing()
    freeing.add(dict.fromkeys([b"%d" % number for number in range(10)]))
    assert not freeing.left
