"""Transactions over ranges that different nodes lead, through the frames of the nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from postroom.errors import CommitUnknown, TransactionConflict
from postroom.kv import keys
from postroom.ranges.calls import NotLeaseholder
from postroom.ranges.requests import CommitTransaction, Get, Increment, Put
from postroom.server.call_frames import CALL_FRAME
from tests.messaging.one_range import Asked
from tests.server.hosting import MEMBERS, ThreeNodes

HERE, THERE = b"a", b"z"
"""A key of range 1, and one of range 2."""

_numbers = itertools.count(1)


@pytest.fixture
def store() -> Iterator[ThreeNodes]:
    """Return three nodes, of which node 1 leads range 1 and node 2 leads range 2."""
    made = ThreeNodes()
    made.lead(1, 1)
    made.lead(2, 2)
    yield made
    made.close()


def transaction(store: ThreeNodes, *writes: Any, **fields: Any) -> CommitTransaction[Any]:
    said: dict[str, Any] = {"read_timestamp": 0, "reads": [], "spans": []} | fields
    began = store.nodes[1].clock.reading()
    return CommitTransaction(
        b"a client" + next(_numbers).to_bytes(8, "big"), began=began, seconds_max=60.0,
        anchor=writes[0].key, writes=list(writes), **said,
    )  # fmt: skip


def value(store: ThreeNodes, key: bytes) -> bytes | None:
    range_id = 1 if key < b"m" else 2
    found: bytes | None = store.ask(store.awaited_leader(range_id), Get(key)).value
    return found


def records(store: ThreeNodes) -> int:
    """Return the number of prepared records on all nodes."""
    prefixes = [keys.prepared_prefix(range_id) for range_id in (1, 2)]
    return sum(
        len([*node.engine.iterate(prefix, keys.after_prefix(prefix))])
        for node in store.nodes.values()
        for prefix in prefixes
    )


def test_a_commit_writes_in_ranges_that_two_nodes_lead(store: ThreeNodes) -> None:
    committed = store.ask(1, transaction(store, Put(HERE, b"1"), Put(THERE, b"2")))
    assert store.ask(1, Get(HERE, committed.timestamp)).value == b"1"
    assert store.ask(2, Get(THERE, committed.timestamp)).value == b"2"
    assert store.ask(2, Get(THERE, committed.timestamp - 1)).value is None
    store.until(lambda: not records(store))


def test_a_refusal_of_another_node_comes_back_as_it_is(store: ThreeNodes) -> None:
    read = store.ask(2, Get(THERE)).timestamp
    store.ask(2, transaction(store, Put(THERE, b"changed")))
    late = transaction(store, Put(HERE, b""), reads=[THERE], read_timestamp=read)
    with pytest.raises(TransactionConflict) as caught:
        store.ask(1, late)
    assert caught.value.keys == (THERE,)
    assert value(store, HERE) is None


@pytest.mark.parametrize("range_id", [1, 2])
def test_a_commit_happens_once_while_a_lead_moves(store: ThreeNodes, range_id: int) -> None:
    for number in range(1, 6):
        request = transaction(store, Increment(HERE), Increment(THERE))
        asked = Asked(request)
        store.nodes[store.awaited_leader(1)].replicas.submit(asked)
        for _ in range(number):
            for node in store.nodes.values():
                node.turn()
        before = store.leader(range_id) or 1
        store.lead(range_id, MEMBERS[before % len(MEMBERS)])
        store.until(lambda: asked.answers)  # noqa: B023 - it is asked for at once
        while isinstance(asked.answers[0][1], CommitUnknown | NotLeaseholder):
            asked = Asked(request)
            store.nodes[store.awaited_leader(1)].replicas.submit(asked)
            store.until(lambda: asked.answers)  # noqa: B023 - it is asked for at once
        assert asked.answers[0][1] is None
        for key in (HERE, THERE):
            assert int.from_bytes(value(store, key) or b"", "big") == number
    store.until(lambda: not records(store))


# --- costs, counted


def rounds(store: ThreeNodes, *keys: bytes) -> int:
    """Return how many turns each node takes until a commit is answered."""
    asked = Asked(transaction(store, *(Put(key, b"") for key in keys)))
    store.until(lambda: not records(store))
    begun = store.clock.seconds
    store.nodes[1].replicas.submit(asked)
    store.until(lambda: asked.answers)
    return round((store.clock.seconds - begun) / store.turn_seconds)


def test_a_commit_over_two_nodes_takes_seven_rounds_against_three_of_one_range(
    store: ThreeNodes,
) -> None:
    assert [rounds(store, HERE, b"b") for _ in range(5)][-1] == 3
    assert [rounds(store, HERE, THERE) for _ in range(5)][-1] == 7


def test_calls_of_a_turn_leave_in_one_frame(
    store: ThreeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[bytes] = []
    carry = store.network.carry

    def counted(sender: Any, to: Any, frame: bytes) -> None:
        if frame.startswith(CALL_FRAME):
            frames.append(frame)
        carry(sender, to, frame)

    monkeypatch.setattr(store.network, "carry", counted)
    every = [
        Asked(transaction(store, Put(HERE + b"%d" % each, b""), Put(THERE + b"%d" % each, b"")))
        for each in range(50)
    ]
    for asked in every:
        store.nodes[1].replicas.submit(asked)
    store.until(lambda: all(asked.answers for asked in every))
    store.until(lambda: not records(store))
    store.until(lambda: not len(store.nodes[1].calls))
    assert len(frames) == 4, "Prepare, Resolve, and the answers to both"
