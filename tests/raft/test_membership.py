"""Members change one at a time, by entries of the log (dissertation, section 4.1)."""

from __future__ import annotations

from postroom.kv.memory import MemoryEngine
from postroom.raft.outcome import Outcome
from tests.raft.cluster import Cluster, Member
from tests.raft.puppet import NOOP_PAYLOAD, Puppets


def change(cluster: Cluster, *members: int) -> Outcome:
    told: list[Outcome] = []
    cluster.elect().group.change_members(members, told.append)
    cluster.run_until(lambda: told)
    return told[0]


def join(cluster: Cluster, node: int) -> Member:
    """A node that knows the first members, and is none of them."""
    cluster.members[node] = Member(cluster, node)
    return cluster.members[node]


def test_a_group_of_one_grows_to_three_and_shrinks_again() -> None:
    cluster = Cluster(1)
    cluster.replicate(3)
    for node in (2, 3):
        join(cluster, node)
        assert change(cluster, *range(1, node + 1)) is Outcome.APPLIED
    cluster.replicate(3)
    cluster.settle()
    cluster.check_state_machine_safety()
    assert [each.group.members for each in cluster.members.values()] == [(1, 2, 3)] * 3
    cluster.crash(1)
    cluster.replicate(2)
    cluster.start(1)
    cluster.settle()
    for members in ((1, 2), (1,)):
        leader = cluster.elect()
        leaves = (set(leader.group.members) - set(members)).pop()
        assert change(cluster, *members) is Outcome.APPLIED
        cluster.crash(leaves)
    cluster.replicate(2)
    assert cluster.elect().node == 1
    cluster.check_outcomes()


def test_members_survive_a_restart_and_truncation() -> None:
    cluster = Cluster(1)
    join(cluster, 2)
    change(cluster, 1, 2)
    cluster.replicate(5)
    cluster.settle()
    cluster.run(1.0)
    for node in (1, 2):
        cluster.crash(node)
    for node in (1, 2):
        assert cluster.start(node).group.members == (1, 2)
    cluster.replicate(1)


def test_one_change_at_a_time() -> None:
    """Section 6 of the paper; dissertation, section 4.1: a majority of old and new must overlap."""
    puppets = Puppets((1, 2, 3))
    puppets.lead()
    told: list[Outcome] = []
    puppets.group.change_members((1, 2, 3, 4), told.append)
    puppets.turn()
    assert told == [Outcome.SUPERSEDED], "before an entry of its own term is committed"
    puppets.acknowledge(2)
    puppets.group.change_members((1, 2, 3, 4, 5), told.append)
    puppets.turn()
    assert told == [Outcome.SUPERSEDED] * 2, "two members at once"
    puppets.group.change_members((1, 2, 3, 4), told.append)
    puppets.group.change_members((1, 2, 3), told.append)
    puppets.turn()
    assert told == [Outcome.SUPERSEDED] * 3, "while another one is under way"
    puppets.acknowledge(2)
    assert told == [Outcome.SUPERSEDED] * 3, "two of four are no majority"
    puppets.acknowledge(3)
    assert told[3:] == [Outcome.APPLIED]


def test_a_follower_does_not_change_members() -> None:
    puppets = Puppets()
    told: list[Outcome] = []
    puppets.group.change_members((1, 2), told.append)
    puppets.turn()
    assert told == [Outcome.SUPERSEDED]


def test_members_count_as_soon_as_they_are_in_the_log_and_go_with_the_entry() -> None:
    """Section 6: "a server always uses the latest configuration in its log"."""
    puppets = Puppets()
    puppets.turn(
        (2, puppets.append(1, (0, 0), (1, NOOP_PAYLOAD), (1, b"\x02\x94\x01\x02\x03\x04")))
    )
    assert puppets.group.members == (1, 2, 3, 4)
    assert puppets.core.quorum == 3
    puppets.turn((3, puppets.append(2, (1, 1), (2, NOOP_PAYLOAD))))
    assert puppets.group.members == (1, 2, 3)
    assert puppets.core.quorum == 2


def test_a_leader_that_is_removed_leads_until_that_is_committed() -> None:
    """Section 6: "the leader steps down ... once it has committed"."""
    puppets = Puppets()
    puppets.lead()
    puppets.acknowledge(2)
    told: list[Outcome] = []
    puppets.group.change_members((2, 3), told.append)
    puppets.turn()
    puppets.acknowledge(2)
    assert puppets.group.is_leader
    puppets.acknowledge(3)
    assert told == [Outcome.APPLIED]
    assert not puppets.group.is_leader
    assert puppets.wait(5.0) == []


def test_a_node_that_is_no_member_does_not_campaign() -> None:
    puppets = Puppets((2, 3), MemoryEngine())
    assert puppets.wait(10.0) == []
