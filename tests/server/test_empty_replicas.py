"""Replicas that never held anything: they vote, and what they promised stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from postroom.raft.interface import NodeId
from postroom.raft.messages import Append, Message, PreVote, Vote, Voted, encode_frame
from tests.server.split_cluster import LAST_ID, SHORT_LOG, SplitCluster, splits_by_hand
from tests.server.test_departing_ranges import removed
from tests.server.test_incoming_ranges import filled, no_group, snapshots_wait


@pytest.fixture(autouse=True)
def by_hand() -> Iterator[None]:
    with splits_by_hand():
        yield


@pytest.fixture(params=[False, True], ids=["plain", "logged"])
def has_log(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def no_states(_: NodeId, to: NodeId, group: int, message: Message) -> bool:
    """Keep the snapshot of the right half from node 3, which hears of its leader."""
    return to == 3 and group == 2 and not isinstance(message, (Append, PreVote, Vote))


@pytest.mark.parametrize("blocks", [no_group(2, 3), no_states], ids=["unheard", "heard"])
def test_a_right_half_elects_a_leader_after_a_disk_is_lost_and_a_node_took_only_the_left_half(
    blocks: Callable[..., bool], has_log: bool
) -> None:
    cluster = filled(SplitCluster(SHORT_LOG, has_log=has_log))
    cluster.crash(3)
    cluster.split(b"m")
    for number in range(20):
        cluster.put(b"c%d" % number)
        cluster.put(b"n%d" % number)
    cluster.lead(2, 1)
    cluster.until(lambda: cluster.is_level(1, 2))
    cluster.blocking = [blocks]
    cluster.start(3)
    cluster.until(lambda: cluster.hosted(3, 1).replica.bounds.end == b"m")  # type: ignore[union-attr]
    cluster.run(2.0)
    assert cluster.hosted(3, 2) is None or cluster.hosted(3, 2).group.holds_nothing  # type: ignore[union-attr]
    cluster.crash(1)
    cluster.blocking.clear()
    assert cluster.awaited_leader(2) == 2
    cluster.put(b"n", b"after the loss")
    cluster.settle(1, 2)
    cluster.close()


class Candidates:
    """Candidates for the lead of range 2, which ask node 3 for votes."""

    def __init__(self, cluster: SplitCluster) -> None:
        self.answers = list[tuple[NodeId, Voted]]()
        self._cluster = cluster
        cluster.blocking = [self._hears]

    def _hears(self, sender: NodeId, to: NodeId, group: int, message: Message) -> bool:
        if sender == 3 and group == 2 and isinstance(message, Voted):
            self.answers.append((to, message))
        return group == 2 or 3 in (sender, to)

    def ask(self, candidate: NodeId, seconds: float = 3.0) -> None:
        """Ask again and again for some time."""
        end = self._cluster.clock.seconds + seconds
        while self._cluster.clock.seconds < end:
            self._cluster.network.carry(candidate, 3, encode_frame([(2, Vote(90, 99, 80))]))
            self._cluster.run(0.3)

    def said(self) -> set[tuple[NodeId, bool]]:
        said, self.answers = self.answers, []
        return {(to, each.granted) for to, each in said}


def restarts(cluster: SplitCluster) -> None:
    cluster.crash(3)
    cluster.start(3)


def is_forgotten(cluster: SplitCluster) -> None:
    cluster.until(lambda: cluster.hosted(3, 2) is None)


@pytest.mark.parametrize("passes", [restarts, is_forgotten])
def test_an_empty_replica_votes_once_a_term_whatever_happens_to_it(
    passes: Callable[[SplitCluster], Any], has_log: bool
) -> None:
    cluster = filled(SplitCluster(has_log=has_log))
    snapshots_wait(cluster)
    candidates = Candidates(cluster)
    candidates.ask(1)
    assert candidates.said() == {(1, True)}
    passes(cluster)
    candidates.ask(2)
    assert candidates.said() == {(2, False)}
    candidates.ask(1)
    assert candidates.said() == {(1, True)}
    cluster.blocking = [no_group(2, 3)]
    cluster.until(lambda: not cluster.hosted(3, 2).group.holds_nothing)  # type: ignore[union-attr]
    group = cluster.hosted(3, 2).group  # type: ignore[union-attr]
    assert (group.term, group.core.vote) == (90, 1)
    cluster.blocking.clear()
    cluster.put(b"n", b"later")
    cluster.settle(1, 2)
    cluster.close()


def test_a_request_for_a_vote_makes_a_replica_only_for_a_range_id_that_was_given_out() -> None:
    cluster = filled(SplitCluster())
    wanted = [Vote(90, 99, 80), Append(90, 5, 5, 5, 5, ())]
    asking = encode_frame([(id_, each) for id_ in (LAST_ID, LAST_ID + 1) for each in wanted])
    for _ in range(5):
        cluster.network.carry(1, 3, asking)
        cluster.run(0.3)
    assert list(cluster.nodes[3].replicas.hosted) == [1, LAST_ID]
    cluster.close()


def test_a_request_for_a_vote_brings_no_destroyed_replica_back(has_log: bool) -> None:
    cluster = filled(SplitCluster(has_log=has_log))
    cluster.split(b"m")
    cluster.put(b"n")
    cluster.settle(1, 2)
    index = removed(cluster)
    candidates = Candidates(cluster)
    cluster.run(0.3)  # the last words of the leader arrive
    cluster.nodes[3].departing.destroy(2, index)
    candidates.ask(1)
    assert cluster.hosted(3, 2) is None
    restarts(cluster)
    candidates.ask(1)
    assert cluster.hosted(3, 2) is None
    cluster.network.carry(1, 3, encode_frame([(2, Append(90, 5, 5, 5, 5, ()))]))
    cluster.until(lambda: cluster.hosted(3, 2))
    candidates.ask(1)
    assert candidates.said() == set(), "it votes only after a snapshot"
    cluster.blocking.clear()
    cluster.close()
