"""Random histories of a few transactions, judged by trying every order of them.

Transactions get, put, scan, send, reap and peek, on two keys and two inboxes. Their steps come in
any order, some commits go together into one proposal, something else may wait in the outbox
meanwhile. Without the check of empty inboxes some histories have no order, and this finds them.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.errors import TransactionConflict
from tests.client.stores import Store
from tests.serializable.histories import Session
from tests.serializable.oracle import Done, State, explains

KEYS, INBOXES = ("a", "b"), ("q", "r")

_step = st.one_of(
    st.tuples(st.sampled_from(["get", "put", "delete", "lock"]), st.sampled_from(KEYS)),
    st.tuples(
        st.sampled_from(["reap", "reap", "send", "send", "peek", "peek_first"]),
        st.sampled_from(INBOXES),
    ),
    st.just(("scan", "")),
)
_transactions = st.lists(st.lists(_step, min_size=1, max_size=4), min_size=2, max_size=4)
_messages = st.dictionaries(st.sampled_from(INBOXES), st.lists(st.uuids(), min_size=1, max_size=2))


def _commit_together(store: Store, session: Session, whos: list[str]) -> None:
    """Commit transactions that are evaluated one after the other, into one proposal."""

    async def commit(who: str) -> None:
        if who in session.failed:
            return
        try:
            await session.transaction(who)._core.commit()
        except TransactionConflict:
            session.failed.add(who)
            session.forget(who)
        else:
            session.committed(who)

    for who in whos:
        store.driver.later(commit(who))
    store.driver.settle()


def _play(store: Store, plan: list[list[tuple[str, str]]], order: Any, before: State) -> Session:
    session = Session(store.db, "h", before)
    left = {f"t{number}": list(steps) for number, steps in enumerate(plan)}
    values = iter(range(1000))
    together: list[str] = []
    while left:
        who = order.draw(st.sampled_from(sorted(left)))
        if left[who]:
            what, target = left[who].pop(0)
            value = f"v{next(values)}" if what in ("put", "send") else ""
            if what != "lock" or who == "t0":  # with two that lock, one would wait for the other
                session.step(who, what, target, value)
            continue
        del left[who]
        if who not in session.failed:
            session.transaction(who)
        together.append(who)
        if not order.draw(st.booleans()):
            _commit_together(store, session, together)
            together = []
    _commit_together(store, session, together)
    return session


@settings(max_examples=300)
@given(plan=_transactions, order=st.data(), messages=_messages, waits=st.booleans())
def test_every_history_has_an_order(plan: Any, order: Any, messages: Any, waits: bool) -> None:
    store = Store()
    if waits:
        with store.db.begin() as tx:
            tx.enqueue_message(b"later", b"x", deliver_at=3600.0)
    before = State({"a": "0"}, {name: list(map(str, ids)) for name, ids in messages.items()})
    session = _play(store, plan, order, before)
    session.judge()
    store.db.close()


def test_the_oracle_knows_a_history_without_an_order() -> None:
    skew = [
        [Done("reap", "q", []), Done("send", "r", "1")],
        [Done("reap", "r", []), Done("send", "q", "2")],
    ]
    after = State({}, {"q": ["2"], "r": ["1"]})
    assert explains(State(), skew, after) is None
    assert explains(State(), [skew[0], [Done("reap", "r", ["1"])]], State()) == (0, 1)
    unread = [skew[0], [Done("reap", "r", None), Done("send", "q", "2")]]
    assert explains(State(), unread, after) is not None
