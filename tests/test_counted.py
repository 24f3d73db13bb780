"""Numbers as people read them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import postroom
from postroom.counted import counted


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 times"), (1, "1 time"), (2, "2 times"), (12_345, "12,345 times")]
)
def test_only_one_is_in_the_singular(number: int, shown: str) -> None:
    assert counted(number, "time") == shown


def test_a_plural_may_have_its_own_form() -> None:
    assert counted(1, "row was", "rows were") == "1 row was"
    assert counted(2, "row was", "rows were") == "2 rows were"


def test_a_message_puts_times_only_behind_a_number_that_is_never_one() -> None:
    """A number that is a name in capitals is a constant above one."""
    by_hand = re.compile(r"\{[^{}]*[a-z][^{}]*\} times\b")
    sources = Path(postroom.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if by_hand.search(path.read_text())] == []
