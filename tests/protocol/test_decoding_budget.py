"""The memory for one request while it is decoded: at most so many times its bytes, and a part."""

from __future__ import annotations

import pytest

from postroom.limits import (
    DECODED_BYTES_ALL,
    DECODED_BYTES_MAX,
    DECODED_BYTES_MIN,
    DECODED_TIMES_MAX,
    FRAME_BYTES_MAX,
)
from postroom.protocol.decoding import BudgetExceeded, DecodingBudget
from postroom.protocol.failures import Failure

MIB = 1024 * 1024


def admit(_: int) -> Failure | None:
    return None


def most_bytes(request_bytes: int) -> int:
    """Return how much memory a request of so many bytes takes at most."""
    budget = DecodingBudget(admit)
    budget.begin(request_bytes)
    with pytest.raises(BudgetExceeded, match="the request is too large") as refused:
        budget.take(1 << 40)
    return int(str(refused.value).split("more than ")[1].split()[0])


@pytest.mark.parametrize("request_bytes", [2 * MIB, 4 * MIB, 12 * MIB, FRAME_BYTES_MAX])
def test_a_large_request_takes_eight_times_its_bytes_at_most(request_bytes: int) -> None:
    most = most_bytes(request_bytes)
    assert most == min(8 * request_bytes, DECODED_BYTES_MAX)
    assert DECODED_TIMES_MAX == 8


def test_a_short_request_may_take_what_a_few_short_keys_take() -> None:
    assert most_bytes(1) == DECODED_BYTES_MIN == 16 * MIB


def test_all_requests_together_take_256_mebibytes_at_most() -> None:
    """Beyond the limit of all, each client still has its share of as much again."""
    assert most_bytes(FRAME_BYTES_MAX) <= DECODED_BYTES_MAX < DECODED_BYTES_ALL
    assert 2 * DECODED_BYTES_ALL <= 256 * MIB


def test_bytes_taken_before_count_in_a_budget() -> None:
    budget = DecodingBudget(admit)
    budget.begin(4 * MIB)
    budget.take(31 * MIB)
    budget.check(MIB)
    with pytest.raises(BudgetExceeded):
        budget.take(MIB + 1)
    assert budget.taken == 31 * MIB
