"""Stores of several ranges are protected as a whole at one moment, and no range lacks a cause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from postroom.errors import Invalid, SnapshotTooOld, Unavailable
from postroom.kv import keys, versions
from postroom.kv.clock import from_seconds
from postroom.kv.engine import Reader
from postroom.limits import WHOLE_LEAD_SECONDS_MAX
from postroom.messaging.bulk_requests import ScanRecords
from postroom.ranges.requests import Now
from postroom.ranges.whole_protections import BeStill, ProtectWhole, ReleaseWhole
from tests.client.stores import Store
from tests.messaging.one_range import Asked
from tests.remote.streams import DatabaseOverStreams
from tests.server.hosting import ThreeNodes, cut
from tests.server.splitting import split

HERE, THERE = b"a", b"z"
"""A key of range 1, and one of range 2."""
OUTGOING = keys.range_prefix(1) + keys.DELIVERABLE


@pytest.fixture(params=[False, True], ids=["embedded", "remote"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return a store of two ranges on one node."""
    made = Store(remote=request.param)
    cut(made.node, b"m")
    made.driver.settle()
    yield made
    made.db.close()


@pytest.fixture
def nodes() -> Iterator[ThreeNodes]:
    """Return three nodes, of which node 1 leads range 1 and node 2 leads range 2."""
    made = ThreeNodes()
    made.lead(1, 1)
    made.lead(2, 2)
    yield made
    made.close()


def stored_then(nodes: ThreeNodes, range_id: int, at: int) -> Reader:
    """Return what a range had stored at a timestamp."""
    replica = nodes.hosted(range_id, range_id).replica
    return replica.protections.reader(replica.stored, at)


def value_then(nodes: ThreeNodes, key: bytes, at: int) -> bytes | None:
    stored = stored_then(nodes, 1 if key < b"m" else 2, at)
    return versions.payload(stored.get(keys.head_key(key)))


def has_any(stored: Reader, prefix: bytes) -> bool:
    return any(True for _ in stored.iterate(prefix, keys.after_prefix(prefix)))


def whole_timestamps(nodes: ThreeNodes) -> list[int]:
    """Return how many timestamps each node protects as a whole."""
    return [node.root.replica.protections.whole for node in nodes.nodes.values()]


def test_all_ranges_of_a_node_are_kept_as_they_were_then(store: Store) -> None:
    for key in (HERE, THERE):
        store.db.put(key, b"old")
    with store.db.hold(whole=True) as at:
        for key in (HERE, THERE):
            store.db.put(key, b"new")
        for start, end in ((b"", b"m"), (b"m", None)):
            scan = store.core.bulk.records("image", start, end, at=at)
            ((record,),) = store.driver.run(_listed(scan))
            assert record.stored.endswith(b"old")
    assert store.node.root.replica.protections.whole == 0
    assert store.node.replicas.sizes()["protections"] == 0


async def _listed(pages: object) -> list[object]:
    return [page async for page in pages]  # type: ignore[attr-defined]


@pytest.mark.parametrize("are_still", [True, False])
@pytest.mark.parametrize("kind", ["transaction", "message"])
def test_a_commit_meanwhile_is_in_all_ranges_or_in_none(
    nodes: ThreeNodes, monkeypatch: pytest.MonkeyPatch, kind: str, are_still: bool
) -> None:
    if not are_still:  # whatever a client leaves out
        monkeypatch.setattr("postroom.client.whole.BeStill", lambda _: Now())
    client = DatabaseOverStreams(nodes)
    seen = [is_in_all(client, kind, turns) for turns in range(-20, 160, 4)]
    assert {*seen} == {True, False}


def is_in_all(client: DatabaseOverStreams, kind: str, turns: int) -> bool:
    """Return whether ranges have what is committed beside a protection, which they do alike.

    Args:
        client: the client.
        kind: what is committed.
        turns: how much later than the protection the commit begins.
    """
    nodes, value, hold = client.nodes, b"%d" % turns, client.db.hold(whole=True)

    async def write() -> int:
        tx = client.db.begin()
        tx.put(HERE, value)
        if kind == "transaction":
            tx.put(THERE, value)
        else:
            tx.enqueue_message(b"z" + value, b"")
        return int(await tx.commit())

    first = client.start(hold.__aenter__()) if turns > 0 else client.start(write())
    steps = count()
    client.until(lambda: (client.go_on(first), next(steps))[1] >= abs(turns))
    second = client.start(write()) if turns > 0 else client.start(hold.__aenter__())
    client.finish(first, second)
    at, committed = [int(each.result()) for each in (first, second)][:: 1 if turns > 0 else -1]
    is_here = value_then(nodes, HERE, at) == value
    assert is_here == (committed <= at), turns
    if kind == "transaction":
        is_there = value_then(nodes, THERE, at) == value
    else:
        arrived = keys.inbox_prefix(b"z" + value)
        is_there = has_any(stored_then(nodes, 1, at), OUTGOING) or has_any(
            stored_then(nodes, 2, at), arrived
        )
    assert is_here == is_there, turns
    client.run(hold.__aexit__(None, None, None))
    engine = nodes.nodes[1].engine
    client.until(lambda: not (any(whole_timestamps(nodes)) or has_any(engine, OUTGOING)))
    return is_here


@pytest.mark.parametrize("turns", range(12))
def test_ranges_are_still_when_all_commits_over_several_have_ended(
    nodes: ThreeNodes, turns: int
) -> None:
    client = DatabaseOverStreams(nodes)
    at = client.ask(Now()) + from_seconds(1.0)

    async def write() -> None:
        async with client.db.begin() as tx:
            tx.put(HERE, b"1")
            tx.put(THERE, b"1")

    def runs() -> list[bool]:
        return [
            replica.transactions is not None and replica.transactions.is_committing()
            for replica in (nodes.hosted(1, 1).replica, nodes.hosted(2, 2).replica)
        ]

    first, steps = client.start(write()), count()
    client.until(lambda: client.go_on(first) or next(steps) >= turns)
    assert client.ask(BeStill(at)) == at
    assert runs() == [False, False]
    second = client.start(write())
    client.pass_time(0.5)
    assert not client.go_on(first, second)
    assert runs() == [False, False]
    client.finish(second)
    assert client.ask(Now()) > at


def test_a_store_is_protected_as_a_whole_beside_clients_that_commit_all_the_time(
    nodes: ThreeNodes,
) -> None:
    client = DatabaseOverStreams(nodes)
    is_over = False

    async def write(name: bytes) -> None:
        number = 0
        while not is_over:
            async with client.db.begin() as tx:
                tx.put(HERE + name, b"%d" % number)
                tx.put(THERE + name, b"%d" % number)
            number += 1

    names = [b"%d" % each for each in range(8)]
    writing = [client.start(write(name)) for name in names]
    for _ in range(10):
        hold = client.db.hold(whole=True)
        holding = client.start(hold.__aenter__())
        client.until(lambda: client.go_on(holding, *writing) or holding.done)  # noqa: B023
        at = int(holding.result())
        for name in names:
            assert value_then(nodes, HERE + name, at) == value_then(nodes, THERE + name, at)
        client.run(hold.__aexit__(None, None, None))
    is_over = True
    client.finish(*writing)
    for each in writing:
        each.result()


def test_commits_have_half_of_the_time_beside_a_reader_that_has_ranges_be_still_all_the_time(
    nodes: ThreeNodes,
) -> None:
    client = DatabaseOverStreams(nodes)
    began, committed_in = client.monotonic(), set[int]()

    async def be_still() -> None:
        while True:
            with suppress(SnapshotTooOld):
                await client.send(BeStill(await client.now() + from_seconds(1.9)))
            await client.sleep(0.01)

    async def write() -> None:
        while True:
            async with client.db.begin() as tx:
                tx.put(HERE, b"1")
                tx.put(THERE, b"1")
            committed_in.add(int((client.monotonic() - began) * 10))

    both = client.start(be_still()), client.start(write())
    client.until(lambda: client.go_on(*both) or client.monotonic() >= began + 8.0)
    assert len(committed_in) >= 0.4 * 80


def test_a_reader_cannot_make_one_pause_longer_and_longer(nodes: ThreeNodes) -> None:
    client = DatabaseOverStreams(nodes)
    client.ask(BeStill(client.ask(Now()) + from_seconds(1.0)))
    client.pass_time(0.5)
    with pytest.raises(SnapshotTooOld, match="go on now; nothing was protected"):
        client.ask(BeStill(client.ask(Now()) + from_seconds(1.9)))


def test_protections_move_the_clock_ahead_by_a_limited_time_in_all(nodes: ThreeNodes) -> None:
    node, longest = nodes.nodes[1], from_seconds(WHOLE_LEAD_SECONDS_MAX)

    def ask(request: Any) -> None:
        asked = Asked(request)
        nodes.hosted(1, 1).replica.submit(asked)
        nodes.until(lambda: asked.answers)
        if asked.answers[0][1] is not None:
            raise asked.answers[0][1]

    def protect() -> None:
        at = node.clock.reading() + from_seconds(1.5)
        try:
            ask(ProtectWhole(at))
        finally:
            ask(ReleaseWhole(at))

    with pytest.raises(Unavailable, match="the clock is 10 s ahead") as refused:
        [protect() for _ in range(20)]
    assert node.clock.reading() - node.clock.by_wall() <= longest
    nodes.clock.seconds += refused.value.retry_after
    nodes.awaited_leader(1)
    nodes.lead(1, 1)
    protect()


def test_a_range_that_has_committed_after_the_moment_refuses_it(nodes: ThreeNodes) -> None:
    client = DatabaseOverStreams(nodes)
    at = client.ask(Now())
    client.put(1, THERE, b"later")
    with pytest.raises(SnapshotTooOld, match="nothing was protected there"):
        client.ask(ProtectWhole(at))
    client.ask(ReleaseWhole(at))
    assert whole_timestamps(nodes) == [0, 0, 0]


def test_a_moment_far_ahead_is_refused(nodes: ThreeNodes) -> None:
    client = DatabaseOverStreams(nodes)
    before = client.ask(Now())
    with pytest.raises(Invalid, match="ahead; nothing was protected"):
        client.ask(ProtectWhole(before + from_seconds(10.0)))
    assert client.ask(Now()) < before + from_seconds(10.0)


def test_the_snapshot_of_a_range_ends_with_its_lease(nodes: ThreeNodes) -> None:
    client = DatabaseOverStreams(nodes)
    hold = client.db.hold(whole=True)
    at = int(client.run(hold.__aenter__()))
    nodes.lead(2, 3)
    nodes.lead(2, 2)
    with pytest.raises(SnapshotTooOld, match="another leader"):
        stored_then(nodes, 2, at)
    assert stored_then(nodes, 1, at)
    assert whole_timestamps(nodes)[:2] == [1, 0]


def test_snapshots_are_closed_when_their_client_has_vanished(nodes: ThreeNodes) -> None:
    client = DatabaseOverStreams(nodes)
    hold = client.db.hold(whole=True)
    client.run(hold.__aenter__())
    assert whole_timestamps(nodes)[:2] == [1, 1]
    client.pass_time(20.0)
    assert whole_timestamps(nodes)[:2] == [1, 1]
    for session in list(client._open.values()):
        session.close()
    assert whole_timestamps(nodes) == [0, 0, 0]


def test_another_client_does_not_release_what_it_has_not_taken(nodes: ThreeNodes) -> None:
    client, other = DatabaseOverStreams(nodes), DatabaseOverStreams(nodes, seed=4)
    hold = client.db.hold(whole=True)
    at = client.run(hold.__aenter__())
    other.ask(ReleaseWhole(int(at)))
    assert whole_timestamps(nodes)[:2] == [1, 1]


def test_a_node_keeps_so_many_timestamps_for_all_of_its_ranges(nodes: ThreeNodes) -> None:
    nodes.lead(2, 1)
    client = DatabaseOverStreams(nodes)
    holds = [client.db.hold(whole=True) for _ in range(9)]
    for hold in holds[:8]:
        client.run(hold.__aenter__())
    with pytest.raises((Invalid, Unavailable), match="nothing was protected"):
        client.run(holds[8].__aenter__())
    assert whole_timestamps(nodes)[0] == 8
    for hold in holds[:8]:
        client.run(hold.__aexit__(None, None, None))
    client.until(lambda: whole_timestamps(nodes) == [0, 0, 0])


def test_the_right_half_of_a_split_has_what_the_range_had(store: Store) -> None:
    for key in (b"p", b"t"):
        store.db.put(key, b"old")
    with store.db.hold(whole=True) as at:
        split(store, b"s")
        for key in (b"p", b"t"):
            store.db.put(key, b"new")
        for start, end in ((b"m", b"s"), (b"s", None)):
            page = store.driver.run(_asked(store, ScanRecords("image", start, end, int(at))))
            assert (page.range_id, page.rows) == (2, 1), "both were in the range that split"
            assert page.columns["stored"].data.endswith(b"old")
    assert store.node.root.replica.protections.whole == 0


async def _asked(store: Store, request: ScanRecords) -> object:
    return await store.core._sender.send(request)
