"""The checker of transactions finds each anomaly that is planted, and says which it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.recorded.appends import NotSerializable, check_appends
from tests.sim.recorded.operations import Outcome, Transaction


def txn(begin: float, end: float, *actions: str, outcome: Outcome = Outcome.OK) -> Transaction:
    """Parse a transaction: ``x+1`` appends 1 to x, ``x=1,2`` reads 1 and 2 from it."""
    parsed: list[Any] = []
    for action in actions:
        key, about = action[:1].encode(), action[2:].encode()
        if action[1] == "+":
            parsed.append(("append", key, about))
        else:
            parsed.append(("read", key, tuple(about.split(b",")) if about else ()))
    return Transaction(f"p{begin:g}", parsed, begin, end, outcome)


def fails(name: str, *transactions: Transaction) -> None:
    with pytest.raises(NotSerializable, match=name):
        check_appends(transactions)


def test_in_order() -> None:
    check_appends([txn(1, 2, "x+1"), txn(3, 4, "x=1", "x+2"), txn(5, 6, "x=1,2", "y=")])


def test_at_once_in_any_order() -> None:
    check_appends([txn(1, 9, "x+1"), txn(1, 9, "x=", "x+2"), txn(10, 11, "x=2,1")])


def test_g0() -> None:
    one, two = txn(1, 9, "x+1", "y+1"), txn(1, 9, "x+2", "y+2")
    fails("^G0: ", one, two, txn(10, 11, "x=1,2"), txn(10, 11, "y=2,1"))


def test_g1a_aborted_read() -> None:
    fails("^G1a", txn(1, 2, "x+1", outcome=Outcome.FAILED), txn(3, 4, "x=1"))


def test_g1b_intermediate_read() -> None:
    fails("^G1b", txn(1, 9, "x+1", "x+2"), txn(1, 9, "x=1"), txn(10, 11, "x=1,2"))


def test_g1c_circular_information() -> None:
    fails("^G1c", txn(1, 9, "x+1", "y=1"), txn(1, 9, "y+1", "x=1"))


def test_g_single_read_skew() -> None:
    fails(
        "^G-single:",
        txn(1, 9, "x+1", "y+1"),
        txn(1, 9, "x=1", "y="),
        txn(10, 11, "x=1", "y=1"),
    )


def test_lost_update() -> None:
    fails("^G-single:", txn(1, 9, "x=", "x+1"), txn(1, 9, "x=", "x+2"), txn(10, 11, "x=1,2"))


def test_g2_write_skew() -> None:
    fails(
        "^G2:",
        txn(1, 9, "x=", "y+1"),
        txn(1, 9, "y=", "x+1"),
        txn(10, 11, "x=1", "y=1"),
    )


def test_stale_read_by_real_time() -> None:
    fails("realtime", txn(1, 2, "x+1"), txn(3, 4, "x="), txn(5, 6, "x=1"))


def test_orders_that_contradict_each_other() -> None:
    both = txn(1, 9, "x+1"), txn(1, 9, "x+2")
    fails("two orders", *both, txn(10, 11, "x=1,2"), txn(10, 11, "x=2,1"))


def test_an_element_twice_and_one_of_nobody() -> None:
    fails("twice", txn(1, 2, "x+1"), txn(3, 4, "x=1,1"))
    fails("nobody", txn(3, 4, "x=7"))


def test_lost_append() -> None:
    fails("lost", txn(1, 2, "x+1"), txn(3, 4, "x="))


def test_own_appends() -> None:
    check_appends([txn(1, 2, "x=", "x+1", "x=1", "x+2")])
    fails("own", txn(1, 2, "x=", "x+1", "x="))


def test_unknown_outcome_may_be_seen_late_or_never() -> None:
    unknown = txn(1, float("inf"), "x+1", outcome=Outcome.UNKNOWN)
    check_appends([unknown, txn(2, 3, "x="), txn(4, 5, "x=1")])
    check_appends([unknown, txn(2, 3, "x=")])
    fails("realtime|two orders", unknown, txn(2, 3, "x=1"), txn(4, 5, "x="))
