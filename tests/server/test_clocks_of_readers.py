"""Timestamps that readers bring from other ranges: a clock follows nodes, and readers hardly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from postroom.errors import Unavailable
from postroom.kv.clock import from_seconds
from postroom.limits import CLOCK_OFFSET_SECONDS_MAX
from postroom.ranges.contract import ROOT_ID, Request
from postroom.ranges.requests import Get
from postroom.ranges.transactions.requests import Refresh
from postroom.server.range_calls import CLOCKS_SECONDS
from tests.client.stores import Store
from tests.messaging.one_range import Asked
from tests.server.hosting import ThreeNodes

HOUR = from_seconds(3600.0)
DAY = 24 * HOUR
FAR = [DAY - HOUR, 2 * HOUR, from_seconds(2 * CLOCK_OFFSET_SECONDS_MAX)]


@pytest.fixture
def nodes() -> Iterator[ThreeNodes]:
    """Return three nodes, of which the first leads the first range, and the second the other."""
    made = ThreeNodes()
    made.lead(ROOT_ID, 1)
    made.lead(2, 2)
    yield made
    made.close()


def pass_time(nodes: ThreeNodes, seconds: float = 0.05) -> None:
    """Let a time pass."""
    end = nodes.clock.seconds + seconds
    nodes.until(lambda: nodes.clock.seconds > end)


def asked_anew(nodes: ThreeNodes, request: Request) -> Any:
    """Return the answer of the second range to a client, which tries again."""
    for _ in range(20):
        try:
            return nodes.ask(2, request)
        except Unavailable:
            pass_time(nodes)
    raise AssertionError("it was refused every time")


def test_a_clock_follows_that_of_the_leader_of_another_range(nodes: ThreeNodes) -> None:
    one, two = nodes.nodes[1].clock, nodes.nodes[2].clock
    for request in (lambda at: Get(b"z", at), lambda at: Refresh([b"z"], [], 1, at)):
        at = one.now() + HOUR
        one.pass_over(at)
        assert two.reading() < at - HOUR // 2
        asked_anew(nodes, request(at))
        assert two.reading() >= at


@pytest.mark.parametrize("ahead", FAR)
def test_a_reader_moves_no_clock_by_more_than_clocks_may_differ(
    nodes: ThreeNodes, ahead: int
) -> None:
    two = nodes.nodes[2].clock
    at = two.now() + ahead
    for request in (Get(b"z", at), Refresh([b"z"], [], 1, at)):
        with pytest.raises(Unavailable, match="in the future of this node; nothing was changed"):
            nodes.ask(2, request)
    pass_time(nodes, 0.2)
    assert two.reading() < at - ahead // 2


def test_a_reader_brings_a_timestamp_that_is_a_little_ahead(nodes: ThreeNodes) -> None:
    at = nodes.nodes[2].clock.now() + from_seconds(CLOCK_OFFSET_SECONDS_MAX / 2)
    assert nodes.ask(2, Get(b"z", at)).timestamp == at


def test_many_readers_move_a_clock_no_further_than_one(nodes: ThreeNodes) -> None:
    two, began = nodes.nodes[2].clock, nodes.nodes[2].clock.now()
    passed = nodes.clock.seconds
    for _ in range(100):
        with suppress(Unavailable):
            nodes.ask(2, Get(b"z", two.now() + from_seconds(CLOCK_OFFSET_SECONDS_MAX / 5)))
    passed = nodes.clock.seconds - passed
    assert two.now() < began + from_seconds(passed + CLOCK_OFFSET_SECONDS_MAX + 0.01)


def test_readers_in_the_future_have_other_nodes_asked_ten_times_a_second(
    nodes: ThreeNodes,
) -> None:
    calls = nodes.nodes[2].calls
    sent = list[float]()
    send = calls._send

    def counted(*arguments: object, **more: object) -> None:
        sent.append(nodes.clock.seconds)
        send(*arguments, **more)  # type: ignore[arg-type]

    calls._send = counted  # type: ignore[method-assign, assignment]
    at, began = nodes.nodes[2].clock.now() + HOUR, nodes.clock.seconds
    for _ in range(1000):
        nodes.nodes[2].replicas.submit(Asked(Get(b"z", at)))
    nodes.until(lambda: nodes.clock.seconds > began + 0.95 * CLOCKS_SECONDS)
    assert len(sent) == 1
    nodes.until(lambda: nodes.clock.seconds > began + 1.5 * CLOCKS_SECONDS)
    nodes.nodes[2].replicas.submit(Asked(Get(b"z", at)))
    assert len(sent) == 2


def test_a_store_of_one_node_refuses_a_timestamp_in_the_future() -> None:
    store = Store()
    store.db.put(b"z", b"v")
    store.db.split(b"m")
    at = store.node.clock.now() + 23 * HOUR

    async def ask() -> object:
        return await store.driver.send(Get(b"z", at))

    with pytest.raises(ValueError, match="lies in the future"):
        store.driver.run(ask())
    assert store.node.clock.reading() < at - 22 * HOUR
    store.db.close()
