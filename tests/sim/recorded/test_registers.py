"""The checker of single keys finds what is planted, and nothing else."""

from __future__ import annotations

import random  # noqa: TID251 (seeded)

import pytest

from tests.sim.recorded.operations import Operation, Outcome
from tests.sim.recorded.registers import NotLinearizable, check_registers

KEY = b"key"


def get(begin: float, end: float, result: bytes | None) -> Operation:
    return Operation("p", "get", KEY, None, None, begin, end, Outcome.OK, result)


def put(begin: float, end: float, value: bytes, outcome: Outcome = Outcome.OK) -> Operation:
    return Operation("p", "put", KEY, value, None, begin, end, outcome)


def swap(begin: float, end: float, expected: bytes | None, value: bytes) -> Operation:
    return Operation("p", "conditional_put", KEY, value, expected, begin, end, Outcome.OK)


INF = float("inf")


def test_a_read_may_see_a_write_before_it_has_returned_and_need_not() -> None:
    check_registers([put(1, 4, b"a"), get(2, 3, b"a")])
    check_registers([put(1, 4, b"a"), get(2, 3, None)])


def test_stale_read() -> None:
    with pytest.raises(NotLinearizable, match="get"):
        check_registers([put(1, 2, b"a"), get(3, 4, None)])


def test_reads_that_go_back() -> None:
    with pytest.raises(NotLinearizable):
        check_registers([put(1, 9, b"a"), get(2, 3, b"a"), get(4, 5, None)])


def test_lost_write() -> None:
    with pytest.raises(NotLinearizable):
        check_registers([put(1, 2, b"a"), put(3, 4, b"b"), get(5, 6, b"a")])


def test_a_write_of_unknown_outcome_may_happen_late_or_never() -> None:
    unknown = put(1, INF, b"a", Outcome.UNKNOWN)
    check_registers([unknown, get(2, 3, None), get(4, 5, b"a")])
    check_registers([unknown, get(2, 3, None), get(4, 5, None)])
    with pytest.raises(NotLinearizable):
        check_registers([unknown, get(2, 3, b"a"), get(4, 5, None)])


def test_a_write_of_unknown_outcome_does_not_happen_before_it_was_invoked() -> None:
    with pytest.raises(NotLinearizable):
        check_registers([get(1, 2, b"a"), put(3, INF, b"a", Outcome.UNKNOWN)])


def test_a_write_that_failed_has_no_effect() -> None:
    with pytest.raises(NotLinearizable):
        check_registers([put(1, 2, b"a", Outcome.FAILED), get(3, 4, b"a")])


def test_one_of_two_conditional_puts_wins() -> None:
    check_registers([swap(1, 4, None, b"a"), swap(2, 6, b"a", b"b"), get(7, 8, b"b")])
    with pytest.raises(NotLinearizable):
        check_registers([swap(1, 4, None, b"a"), swap(2, 3, None, b"b")])


@pytest.mark.parametrize("seed", range(30))
def test_random_histories(seed: int) -> None:
    """The acts of a variable are linearizable; with one result changed, mostly not."""
    chance = random.Random(seed)
    state: bytes | None = None
    history = []
    for number in range(60):
        moment = number + 0.5
        begin, end = moment - chance.random() * 3, moment + chance.random() * 3
        if chance.random() < 0.5:
            state = b"%d" % number
            history.append(put(begin, end, state))
        else:
            history.append(get(begin, end, state))
    chance.shuffle(history)
    assert check_registers(history) == 60
    stale = next(each for each in history if each.action == "get" and each.invoked_at > 20)
    stale.result = None
    with pytest.raises(NotLinearizable):
        check_registers(history)
