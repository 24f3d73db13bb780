"""The checker of transactions agrees with a search through all orders, whatever the history."""

from __future__ import annotations

from random import Random  # noqa: TID251 - handed in by Hypothesis, or seeded
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.recorded.appends import NotSerializable, check_appends
from tests.sim.recorded.operations import Outcome, Transaction
from tests.sim.recorded.oracle import is_explained
from tests.sim.recorded.test_appends import fails, txn

UNKNOWN = Outcome.UNKNOWN
INF = float("inf")


def accepts(history: list[Transaction]) -> bool:
    try:
        check_appends(history)
    except NotSerializable:
        return False
    return True


def drawn_history(chance: Random) -> list[Transaction]:
    """Draw transactions that were carried out in an order; then, perhaps, tell them wrongly."""
    keys = [b"x", b"y"][: chance.randint(1, 2)]
    state: dict[bytes, tuple[bytes, ...]] = {}
    history = []
    elements = iter(range(1, 100))
    for place in range(chance.randint(1, 5)):
        transaction, own = _drawn(chance, keys, state, elements)
        slack = chance.choice([0.0, 0.4, 2.0, 9.0])
        transaction.invoked_at = place + 0.5 - chance.random() * slack
        transaction.returned_at = place + 0.5 + chance.random() * slack
        transaction.outcome = chance.choice([Outcome.OK] * 6 + [UNKNOWN, UNKNOWN, Outcome.FAILED])
        if transaction.outcome is UNKNOWN:
            transaction.returned_at = INF
        if transaction.outcome is Outcome.OK or (
            transaction.outcome is UNKNOWN and chance.random() < 0.7
        ):
            state.update(own)
        history.append(transaction)
    for _ in range(chance.choice([0, 1, 1, 2])):
        _tell_wrongly(chance, history)
    chance.shuffle(history)
    return history


def _drawn(chance: Random, keys: list[bytes], state: Any, elements: Any) -> Any:
    own = dict(state)
    transaction = Transaction(f"p{chance.randrange(1000)}")
    for _ in range(chance.randint(1, 4)):
        key = chance.choice(keys)
        if chance.random() < 0.5:
            element = b"%d" % next(elements)
            own[key] = (*own.get(key, ()), element)
            transaction.actions.append(("append", key, element))
        else:
            transaction.actions.append(("read", key, own.get(key, ())))
    return transaction, own


def _tell_wrongly(chance: Random, history: list[Transaction]) -> None:
    """Change one read, or one moment."""
    transaction = chance.choice(history)
    if chance.random() < 0.2 and transaction.outcome is Outcome.OK:
        transaction.invoked_at = chance.random() * 5
        transaction.returned_at = transaction.invoked_at + chance.random() * 2
        return
    places = [at for at, (what, *_) in enumerate(transaction.actions) if what == "read"]
    if not places:
        return
    at = chance.choice(places)
    _, key, about = transaction.actions[at]
    wrong: list[Any] = list(about)
    everything = [
        element
        for each in history
        for what, list_, element in each.actions
        if what == "append" and list_ == key
    ]
    match chance.randrange(5):
        case 0 if wrong:
            wrong.pop()
        case 1 if everything:
            wrong.append(chance.choice(everything))
        case 2 if wrong:
            wrong.pop(chance.randrange(len(wrong)))
        case 3 if everything:
            wrong.insert(chance.randrange(len(wrong) + 1), chance.choice(everything))
        case _:
            chance.shuffle(wrong)
    transaction.actions[at] = ("read", key, tuple(wrong))


@settings(max_examples=400)
@given(st.randoms(use_true_random=False))
def test_the_checker_of_appends_agrees_with_the_oracle(chance: Random) -> None:
    history = drawn_history(chance)
    assert accepts(history) == is_explained(history), "\n".join(map(str, history))


@pytest.mark.parametrize("seed", range(4))
def test_the_checker_of_appends_agrees_with_the_oracle_on_many(seed: int) -> None:
    """The same without Hypothesis, which is slower; a third of these histories are wrong."""
    wrong = 0
    for number in range(1500):
        history = drawn_history(Random(f"history {seed} {number}"))
        right = is_explained(history)
        wrong += not right
        assert accepts(history) == right, f"{seed} {number}:\n" + "\n".join(map(str, history))
    assert 300 < wrong < 1200


# --- missed anomalies -------------------------------------------------------------------------


def test_half_of_a_transaction_of_unknown_outcome() -> None:
    unknown = txn(1, INF, "x+1", "y+2", outcome=UNKNOWN)
    fails("^G-single:", unknown, txn(2, 3, "x=", "y=2"))
    check_appends([unknown, txn(2, 3, "x="), txn(4, 5, "x=1", "y=2")])


def test_values_before_own_appends_are_checked() -> None:
    others = txn(1, 2, "x+1"), txn(3, 4, "x+5")
    check_appends([*others, txn(6, 7, "x+7", "x=1,5,7")])
    fails("nobody", *others, txn(6, 7, "x+7", "x=1,5,6,7"))
    fails("lost|realtime", *others, txn(6, 7, "x+7", "x=1,7"))
    fails("two orders", *others, txn(6, 7, "x+7", "x=5,1,7"), txn(8, 9, "x=1,5,7"))


def test_a_read_of_the_future() -> None:
    fails("only later", txn(1, 2, "x=1", "x+1"))


def test_own_appends_in_another_order() -> None:
    one = txn(1, 2, "x+1", "x+2", "x+3")
    fails("another order", one, txn(3, 4, "x=2,1,3"))
    fails("another order", one, txn(3, 4, "x=1,3"))
    fails("another order|G0", one, txn(1, 2, "x+4"), txn(3, 4, "x=1,4,2,3"))


def test_reads_of_a_transaction_of_unknown_outcome_count_if_it_happened() -> None:
    unknown = txn(1, INF, "y=", "x+1", outcome=UNKNOWN)
    fails("realtime", txn(0.1, 0.2, "y+5"), unknown, txn(2, 3, "x=1", "y=5"))
    check_appends([txn(0.1, 0.2, "y+5"), unknown, txn(2, 3, "x=", "y=5")])


def test_one_of_unknown_outcome_is_known_by_another_one() -> None:
    one = txn(1, INF, "x+1", "z+1", outcome=UNKNOWN)
    other = txn(1, INF, "x=1", "y+2", outcome=UNKNOWN)
    check_appends([one, other, txn(2, 3, "z=", "y=")])
    fails("G-single", one, other, txn(2, 3, "z=", "y=2"))


def test_a_cycle_that_much_comes_after() -> None:
    """It is seen though more than fifty transactions come after it."""
    after = [txn(10 + each, 10.5 + each, f"z+{each}") for each in range(100)]
    one, other = txn(1, 9, "x+1", "y=1"), txn(1, 9, "y+1", "x=1")
    fails("^G1c", *after, one, other)
    reads = [txn(200 + each, 200.5 + each, "x=1", "y=1") for each in range(100)]
    fails("^G1c", *reads, one, other)
