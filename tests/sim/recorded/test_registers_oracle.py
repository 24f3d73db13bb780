"""The checker of single keys, compared with a search through all orders.

It is quick with many clients.
"""

from __future__ import annotations

from random import Random  # noqa: TID251 - handed in by Hypothesis, or seeded

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.recorded.operations import Operation, Outcome
from tests.sim.recorded.oracle import is_explained
from tests.sim.recorded.registers import NotLinearizable, Undecided, check_registers

KEY = b"key"


def accepts(history: list[Operation]) -> bool:
    try:
        check_registers(history)
    except NotLinearizable:
        return False
    return True


def drawn_history(chance: Random) -> list[Operation]:
    """Draw operations with few values, so that one is often written twice; then, perhaps, lie."""
    values = [b"a", b"b", b"c", b"d"][: chance.randint(1, 4)]
    history: list[Operation] = []
    state: bytes | None = None
    for place in range(chance.randint(1, 7)):
        operation = _drawn(chance, values, state)
        slack = chance.choice([0.0, 0.4, 2.0, 5.0])
        operation.invoked_at = place + 0.5 - chance.random() * slack
        operation.returned_at = place + 0.5 + chance.random() * slack
        operation.outcome = chance.choice(
            [Outcome.OK] * 6 + [Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.FAILED]
        )
        if operation.outcome is Outcome.UNKNOWN:
            operation.returned_at, operation.result = float("inf"), None
        happened = operation.outcome is Outcome.OK or (
            operation.outcome is Outcome.UNKNOWN and chance.random() < 0.7
        )
        fits = operation.action != "conditional_put" or operation.expected == state
        if operation.outcome is Outcome.OK and not fits:
            operation.action, operation.result = "get", state
        elif happened and fits and operation.action != "get":
            state = operation.value
        history.append(operation)
    for _ in range(chance.choice([0, 1, 1, 2])):
        gets = [each for each in history if each.action == "get" and each.outcome is Outcome.OK]
        if gets:
            chance.choice(gets).result = chance.choice([None, *values])
    chance.shuffle(history)
    return history


def _drawn(chance: Random, values: list[bytes], state: bytes | None) -> Operation:
    action = chance.choice(["get", "get", "get", "put", "put", "delete", "conditional_put"])
    operation = Operation("p", action, KEY)
    if action == "get":
        operation.result = state
    elif action != "delete":
        operation.value = chance.choice(values)
    if action == "conditional_put":
        operation.expected = chance.choice([state, state, None, *values])
    return operation


@settings(max_examples=400)
@given(st.randoms(use_true_random=False))
def test_the_checker_of_registers_agrees_with_the_oracle(chance: Random) -> None:
    history = drawn_history(chance)
    assert accepts(history) == is_explained(history), "\n".join(map(str, history))


@pytest.mark.parametrize("seed", range(4))
def test_the_checker_of_registers_agrees_with_the_oracle_on_many(seed: int) -> None:
    wrong = 0
    for number in range(1000):
        history = drawn_history(Random(f"history {seed} {number}"))
        right = is_explained(history)
        wrong += not right
        assert accepts(history) == right, f"{seed} {number}:\n" + "\n".join(map(str, history))
    assert 200 < wrong < 800


def of_many_clients(chance: Random, clients: int, rounds: int) -> list[Operation]:
    """Draw operations of clients that do one thing after the other, each of which takes long."""
    moments = sorted(
        (chance.random() * rounds, client) for client in range(clients) for _ in range(rounds)
    )
    free_at = [0.0] * clients
    state: bytes | None = None
    history = []
    for number, (moment, client) in enumerate(moments):
        if moment < free_at[client]:
            continue
        begin, end = (free_at[client] + moment) / 2, moment + chance.random() * 0.3
        free_at[client] = end
        operation = Operation(f"{client}", "get", KEY, None, None, begin, end, Outcome.OK, state)
        if chance.random() < 0.4:
            operation.action, operation.value = "put", b"%d" % number
            state = operation.value
        elif chance.random() < 0.2:
            operation.action, operation.expected = "conditional_put", state
            operation.value = state = b"%d" % number
        history.append(operation)
    return history


@pytest.mark.parametrize("seed", range(5))
def test_a_hundred_clients(seed: int) -> None:
    """The search gave up on these: nearly every operation may come next."""
    chance = Random(f"many {seed}")
    history = of_many_clients(chance, clients=100, rounds=20)
    assert check_registers(history) == len(history) > 1500
    reads = [each for each in history if each.action == "get" and each.result is not None]
    victim = reads[len(reads) // 2]
    victim.result = reads[0].result  # overwritten long ago
    with pytest.raises(NotLinearizable):
        check_registers(history)


def test_a_budget_that_is_spent_is_told_and_other_keys_are_judged_all_the_same() -> None:
    history = of_many_clients(Random("budget"), clients=10, rounds=10)
    with pytest.raises(
        Undecided, match=r"not decided within 20 steps: [0-9]+ operations on b'key'"
    ):
        check_registers(history, steps_max=20)
    wrong = Operation("p", "get", b"other", None, None, 1, 2, Outcome.OK, b"never written")
    with pytest.raises(NotLinearizable, match="never written"):
        check_registers([*history, wrong], steps_max=20)
