"""Leases that spread: each node leads about as many ranges, and leases that users move stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random  # noqa: TID251 (seeded)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.ranges.contract import Role
from postroom.ranges.lease_moves import MoveLease
from postroom.server.hosted_range import WANTED_SECONDS
from postroom.server.lease_spreading import REST_SECONDS, Gift, Lead, lease_to_give
from tests.client.stores import Store
from tests.remote.streams import Streams
from tests.server.hosting import ThreeNodes, cut

CUTS = tuple(b"%c" % letter for letter in b"bcdefghijkl")
LOOK_SECONDS = 11.0
"""The longest time between two looks of a node."""

# --- the decision


@pytest.mark.parametrize(
    ("leads", "led_by", "gift"),
    [
        ([], {}, None),
        ([(1, (2,))], {1: 1}, None),
        ([(1, (2,)), (2, (2,))], {1: 2}, Gift(2, 2)),
        ([(1, (2,)), (2, (2,))], {1: 2, 2: 1}, None),
        ([(1, (2, 3)), (2, (2, 3)), (5, (2, 3))], {1: 3, 2: 1}, Gift(5, 3)),
        ([(1, (2, 3)), (2, (2, 3)), (5, (2,))], {1: 3, 2: 1}, Gift(2, 3)),
        ([(1, (2, 3)), (2, ()), (5, ())], {1: 3, 2: 1, 3: 1}, Gift(1, 2)),
        ([(1, ()), (2, ()), (5, ())], {1: 3}, None),
    ],
)
def test_a_leader_of_two_more_gives_one_to_the_node_that_leads_least(
    leads: list[tuple[int, tuple[int, ...]]], led_by: dict[int, int], gift: Gift | None
) -> None:
    assert lease_to_give([Lead(*each) for each in leads], led_by) == gift


@given(st.lists(st.integers(1, 5), max_size=40), st.randoms(use_true_random=False))
def test_every_distribution_ends_even_and_stays(leaders: list[int], chance: Random) -> None:
    """Nodes act one after the other, in any order."""
    for _ in range(len(leaders) + 1):
        for node in chance.sample(range(1, 6), 5):
            gift = _next(leaders, node)
            if gift is not None:
                leaders[gift.range_id - 1] = int(gift.to)
    assert all(_next(leaders, node) is None for node in range(1, 6))
    counts = Counter(leaders)
    assert max(counts.values(), default=0) - min(counts[node] for node in range(1, 6)) <= 1


def _next(leaders: Sequence[int], node: int) -> Gift | None:
    others = tuple(each for each in range(1, 6) if each != node)
    own = [Lead(id_, others) for id_, leader in enumerate(leaders, 1) if leader == node]
    return lease_to_give(own, Counter(leaders))


# --- three nodes with twelve ranges


@pytest.fixture
def twelve() -> Iterator[ThreeNodes]:
    nodes = ThreeNodes(*CUTS)
    nodes.turn_seconds = 0.02
    yield nodes
    nodes.close()


def led(nodes: ThreeNodes) -> dict[int, int]:
    """Return how many ranges each node leads."""
    hosted = {id_: node.replicas.hosted.values() for id_, node in nodes.nodes.items()}
    return {id_: sum(each.group.is_leader for each in ranges) for id_, ranges in hosted.items()}


def lead_all(nodes: ThreeNodes, node_id: int) -> None:
    for range_id in nodes.nodes[1].replicas.hosted:
        nodes.lead(range_id, node_id)


def test_the_leases_of_one_node_spread_one_by_one_and_then_stay(twelve: ThreeNodes) -> None:
    lead_all(twelve, 1)
    began, seen = twelve.clock.seconds, [led(twelve)]
    while twelve.clock.seconds < began + 9 * LOOK_SECONDS:
        twelve.pass_time(0.5)
        if led(twelve) != seen[-1]:
            seen.append(led(twelve))
    assert led(twelve) == {1: 4, 2: 4, 3: 4}
    given_away = [each[1] for each in seen if sum(each.values()) == 12]
    assert all(before - after <= 1 for before, after in pairwise(given_away))
    assert twelve.hosted(1, 1).group.is_leader, "the root comes last"
    leaders = [each.group.leader for each in twelve.nodes[1].replicas.hosted.values()]
    twelve.pass_time(5 * LOOK_SECONDS)
    assert [each.group.leader for each in twelve.nodes[1].replicas.hosted.values()] == leaders


@pytest.fixture
def three() -> Iterator[ThreeNodes]:
    nodes = ThreeNodes(b"m", b"t")
    nodes.turn_seconds = 0.02
    yield nodes
    nodes.close()


def test_a_lease_stays_for_a_minute_where_a_user_has_moved_it(three: ThreeNodes) -> None:
    for range_id in (1, 2, 3):
        three.lead(range_id, 1)
    client = Streams(three, Role.ADMIN)
    for range_id in (1, 2, 3):
        client.ask(MoveLease(range_id, 1))
    three.pass_time(WANTED_SECONDS - 5)
    assert led(three) == {1: 3, 2: 0, 3: 0}
    three.until(lambda: led(three) == {1: 1, 2: 1, 3: 1}, 5 + 3 * LOOK_SECONDS)


def test_a_lease_stays_while_its_range_is_protected_as_a_whole(three: ThreeNodes) -> None:
    for range_id in (1, 2, 3):
        three.lead(range_id, 1)
    at = three.nodes[1].clock.reading()
    for range_id in (1, 2, 3):
        three.hosted(1, range_id).replica.protections.take_until_released(at, b"", "")
    three.pass_time(3 * LOOK_SECONDS)
    assert led(three) == {1: 3, 2: 0, 3: 0}
    three.hosted(1, 1).replica.protections.release(at)
    three.until(lambda: led(three) == {1: 1, 2: 1, 3: 1}, 3 * LOOK_SECONDS)


def test_a_node_that_has_given_its_leases_away_is_given_none_at_once(three: ThreeNodes) -> None:
    three.lead(1, 1)
    three.lead(2, 2)
    three.lead(3, 3)
    three.pass_time(2 * LOOK_SECONDS)
    assert led(three) == {1: 1, 2: 1, 3: 1}
    pending = three.nodes[3].hand_over(1)
    three.until(lambda: pending.done and led(three) == {1: 2, 2: 1, 3: 0})
    three.pass_time(REST_SECONDS - 1)
    assert led(three) == {1: 2, 2: 1, 3: 0}
    three.until(lambda: led(three) == {1: 1, 2: 1, 3: 1}, 3 * LOOK_SECONDS)


def test_a_node_that_does_not_answer_is_given_none(three: ThreeNodes) -> None:
    for range_id in (1, 2, 3):
        three.lead(range_id, 1)
    stopped = three.nodes.pop(3)
    three.pass_time(4 * LOOK_SECONDS)
    assert led(three) == {1: 2, 2: 1}
    three.nodes[3] = stopped
    three.pass_time(LOOK_SECONDS + 1)
    assert sum(led(three).values()) >= 3


def test_a_node_that_is_alone_keeps_all_and_an_embedded_store_does_not_even_look() -> None:
    for rests_alone in (False, True):
        store = Store(rests_alone=rests_alone)
        assert not store.node._spreading.running
        cut(store.node, b"m", b"z")
        assert store.node._spreading.running is not rests_alone
        store.advance(5 * LOOK_SECONDS)
        assert all(each.group.is_leader for each in store.node.replicas.hosted.values())
        store.db.close()
