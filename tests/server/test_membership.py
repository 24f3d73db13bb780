"""Membership: from what the record of the nodes says to changes of the group, one by one."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from postroom.errors import Unavailable
from postroom.limits import MEMBERS_MAX
from postroom.raft.membership import (
    AddLearner,
    Change,
    FinishReplacement,
    Members,
    Promote,
    Remove,
    Replace,
    changed,
)
from postroom.raft.proposals import ProposalOutcome
from postroom.raft.replication import PeerProgress
from postroom.ranges.nodes import ForgetNode, NodeDescriptor, Nodes
from postroom.server.membership import MembershipService, has_joined

T = TypeVar("T")
LAST_INDEX = 1000


class Group:
    """The service's view of a group."""

    def __init__(self, voters: tuple[int, ...], learners: tuple[int, ...] = ()) -> None:
        self.both = Members(voters, learners)
        self.last_index = LAST_INDEX
        self.behind: dict[int, PeerProgress] = {}

    @property
    def members(self) -> tuple[Any, ...]:
        return self.both.counted

    @property
    def is_joint(self) -> bool:
        return self.both.is_joint

    @property
    def learners(self) -> tuple[Any, ...]:
        return self.both.learners

    def progress(self) -> dict[Any, PeerProgress]:
        everybody = (*self.both.voters, *self.both.learners)
        level = PeerProgress(LAST_INDEX, 0.0, snapshot_under_way=False)
        return {node: self.behind.get(node, level) for node in everybody}


class Node:
    """A node whose group changes at once."""

    def __init__(self, group: Group, *nodes: NodeDescriptor) -> None:
        self.node_id = 1
        self.is_root = True
        self.group = group
        self.nodes: Nodes | None = Nodes(b"c" * 16, 100, nodes)
        self.done: list[object] = []
        self.outcome = ProposalOutcome.APPLIED
        self.refuses = False
        self.is_splitting = False
        self.elsewhere: set[int] = set()
        self.in_other_ranges: set[int] = set()
        self.service = MembershipService(self, group, self)  # type: ignore[arg-type]

    async def wait(self, timeout_seconds: float) -> None:
        raise AssertionError

    def has_to_stay(self, node_id: int) -> bool:
        return node_id in self.in_other_ranges

    def may_have_member(self, node_id: int) -> bool:
        return node_id in self.elsewhere or node_id in (*self.group.members, *self.group.learners)

    async def change_members(self, change: Change) -> ProposalOutcome:
        self.done.append(change)
        if self.outcome is ProposalOutcome.APPLIED:
            after = changed(self.group.both, change)
            assert after is not None, change
            self.group.both = changed(after, FinishReplacement()) or after
        return self.outcome

    async def upkeep(self, request: ForgetNode) -> None:
        if self.refuses:
            raise Unavailable("no leader")
        assert self.nodes is not None
        self.done.append(request)
        left = tuple(node for node in self.nodes.nodes if node.node_id != request.node_id)
        self.nodes = Nodes(self.nodes.cluster_id, 100, left)

    def hand_over(self, to: int | None = None) -> None:
        self.done.append(f"hand over to {to}")

    def steps(self, most: int = 10) -> list[object]:
        """Return the steps until everything is settled, or that many steps."""
        for _ in range(most):
            if finished(self.service.step()):
                break
        done, self.done = self.done, []
        return done


def silent(*members: int) -> Group:
    """Return a group of three, some of whose members have not answered for long."""
    group = Group((1, 2, 3))
    group.behind = {each: PeerProgress(0, 5.0, snapshot_under_way=False) for each in members}
    return group


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("it waits")


def member(node_id: int, *, retired: bool = False) -> NodeDescriptor:
    return NodeDescriptor(node_id, f"host{node_id}:1", bytes([node_id]) * 16, retired)


def test_a_group_of_all_nodes_needs_no_steps() -> None:
    assert Node(Group((1, 2, 3)), member(1), member(2), member(3)).steps() == []


def test_a_store_that_is_no_cluster() -> None:
    node = Node(Group((1,)))
    node.nodes = None
    assert node.steps() == []


def test_a_node_stays_while_the_entry_of_a_split_is_under_way() -> None:
    """The right half would keep a member that can never begin it."""
    node = Node(Group((1, 2, 3)), member(1), member(2), member(3, retired=True))
    node.is_splitting = True
    assert node.steps() == []
    node.is_splitting = False
    assert node.steps()[0] == Remove(3)


def test_a_node_that_joins_is_fed_and_then_counted() -> None:
    node = Node(Group((1, 2, 3)), *(member(each) for each in (1, 2, 3, 4)))
    assert node.steps() == [AddLearner(4), Promote(4)]


def test_a_learner_is_not_promoted_before_it_has_caught_up() -> None:
    group = Group((1, 2, 3), (4, 5, 6, 7))
    group.behind = {
        4: PeerProgress(LAST_INDEX - 500, 0.0, snapshot_under_way=False),
        5: PeerProgress(LAST_INDEX, 5.0, snapshot_under_way=False),
        6: PeerProgress(LAST_INDEX, 0.0, snapshot_under_way=True),
    }
    node = Node(group, *(member(each) for each in range(1, 8)))
    assert node.steps() == [Promote(7)]
    assert not finished(node.service.step()), "it looks again"


def test_a_learner_that_never_answered_is_not_promoted() -> None:
    """In a young cluster even a node that has nothing is only a few entries behind."""
    group = Group((1, 2, 3), (4,))
    group.last_index = 30
    group.behind = {4: PeerProgress(0, 0.0, snapshot_under_way=False)}
    assert Node(group, *(member(each) for each in (1, 2, 3, 4))).steps() == []


def test_a_wiped_disk_is_replaced() -> None:
    """A wiped disk is replaced without a fourth voter in between.

    With four voters, one of them gone, both others and the new one would have to live; and the new
    one may be wiped in turn.
    """
    node = Node(silent(3), member(1), member(2), member(3, retired=True), member(4))
    assert node.steps() == [AddLearner(4), Replace(3, 4), ForgetNode(3)]
    assert node.steps() == []


def test_a_wiped_disk_that_was_heard_a_moment_ago_is_replaced_in_the_same_way() -> None:
    node = Node(Group((1, 2, 3)), member(1), member(2), member(3, retired=True), member(4))
    assert node.steps() == [AddLearner(4), Replace(3, 4), ForgetNode(3)]


def test_a_node_that_is_replaced_counts_until_its_successor_does() -> None:
    group = Group((1, 2, 3), (4,))
    group.behind = {4: PeerProgress(LAST_INDEX - 500, 0.0, snapshot_under_way=False)}
    node = Node(group, member(1), member(2), member(3, retired=True), member(4))
    assert node.steps() == []
    group.behind.clear()
    assert node.steps() == [Replace(3, 4), ForgetNode(3)]


def test_two_wiped_disks_are_replaced_one_after_the_other() -> None:
    group = Group((1, 2, 3, 4, 5), (6, 7))
    retired = [member(each, retired=True) for each in (4, 5)]
    node = Node(group, member(1), member(2), member(3), *retired, member(6), member(7))
    group.behind = {5: PeerProgress(0, 5.0, snapshot_under_way=False)}
    assert node.steps()[:2] == [Replace(5, 6), Replace(4, 7)], "the one that is gone comes first"


def test_one_that_is_gone_of_an_even_number_leaves_before_its_successor_has_caught_up() -> None:
    group = Group((1, 2, 3, 4), (5,))
    group.behind = {
        4: PeerProgress(0, 5.0, snapshot_under_way=False),
        5: PeerProgress(0, 0.0, snapshot_under_way=True),
    }
    node = Node(group, member(1), member(2), member(3), member(4, retired=True), member(5))
    assert node.steps(1) == [Remove(4)]


def test_a_voter_is_not_replaced_without_a_new_majority_that_keeps_up() -> None:
    group = silent(2)
    group.both = Members((1, 2, 3), (4,))
    node = Node(group, member(1), member(2), member(3, retired=True), member(4))
    assert node.steps() == [Replace(3, 4), ForgetNode(3)], "1 and 3 before, 1 and 4 after"
    group = silent(2, 3)
    group.both = Members((1, 2, 3), (4,))
    assert Node(group, member(1), member(2), member(3, retired=True), member(4)).steps() == []


def test_a_replacement_under_way_is_waited_for() -> None:
    group = Group((1, 2, 4))
    group.both = Members((1, 2, 4), (), (1, 2, 3))
    node = Node(group, member(1), member(2), member(3, retired=True), member(4))
    assert not finished(node.service.step())
    assert node.done == []


def test_a_leader_that_is_replaced_leads_until_then() -> None:
    group = Group((1, 2, 3), (4,))
    group.behind = {4: PeerProgress(LAST_INDEX - 500, 0.0, snapshot_under_way=True)}
    node = Node(group, member(1, retired=True), member(2), member(3), member(4))
    assert node.steps(3) == []
    group.behind.clear()
    assert node.steps(1) == ["hand over to 2"], "which replaces it"


def test_an_only_voter_that_is_to_leave_counts_its_successor_first() -> None:
    node = Node(Group((1,), (2,)), member(1, retired=True), member(2))
    assert node.steps(2) == [Promote(2), "hand over to 2"]


def test_a_successor_that_does_not_answer_is_not_waited_for() -> None:
    group = silent(4)
    node = Node(group, member(1), member(2), member(3, retired=True), member(4))
    assert node.steps() == [AddLearner(4), Remove(3), ForgetNode(3)]


def test_a_voter_is_not_removed_without_a_majority_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The change could not be committed, nor anything after it."""
    group = silent(3)
    node = Node(group, member(1), member(2, retired=True), member(3))
    with caplog.at_level(logging.INFO):
        assert node.steps() == []
    assert [record.message[:20] for record in caplog.records] == ["node 2 is to leave, "]
    assert not finished(node.service.step()), "it looks again"
    group.behind.clear()
    assert node.steps() == [Remove(2), ForgetNode(2)]


def test_a_voter_that_is_far_behind_does_not_count_for_the_majority() -> None:
    """It answers, and still it would be long until anything could be agreed on."""
    group = Group((1, 2, 3))
    for behind in (
        PeerProgress(LAST_INDEX - 500, 0.0, snapshot_under_way=False),
        PeerProgress(LAST_INDEX, 0.0, snapshot_under_way=True),
        PeerProgress(0, 0.0, snapshot_under_way=False),
    ):
        group.behind = {3: behind}
        node = Node(group, member(1), member(2, retired=True), member(3))
        assert node.steps() == []


def test_a_retired_voter_stays_if_no_majority_answers() -> None:
    node = Node(silent(2, 3), member(1), member(2), member(3, retired=True))
    assert node.steps() == []


def test_a_voter_that_is_gone_is_removed_first() -> None:
    """In order of numbers, the first change would be the last one."""
    node = Node(silent(3), member(1), member(2, retired=True), member(3, retired=True))
    assert node.steps() == [Remove(3), Remove(2), ForgetNode(2), ForgetNode(3)]


def test_a_retired_leader_hands_over() -> None:
    node = Node(Group((1, 2, 3)), member(1, retired=True), member(2), member(3))
    assert node.steps(1) == ["hand over to 2"]


def test_a_retired_leader_hands_over_to_one_that_stays_and_keeps_up() -> None:
    """Two that are retired would hand over to each other for ever."""
    group = Group((1, 2, 3, 4))
    group.behind = {3: PeerProgress(10, 0.0, snapshot_under_way=False)}
    both = [member(1, retired=True), member(2, retired=True)]
    assert Node(group, *both, member(3), member(4)).steps(1) == [Remove(2)]
    node = Node(silent(3), *both, member(3))
    assert node.steps() == []
    assert not finished(node.service.step()), "it looks again"


def test_a_learner_that_is_retired_goes_too() -> None:
    node = Node(Group((1, 2, 3), (4,)), member(1), member(2), member(3), member(4, retired=True))
    assert node.steps() == [Remove(4), ForgetNode(4)]


def test_a_refused_change_of_members_is_tried_again() -> None:
    node = Node(Group((1, 2)), member(1), member(2), member(3))
    node.outcome = ProposalOutcome.SUPERSEDED
    assert node.steps(2) == [AddLearner(3), AddLearner(3)]
    node.outcome = ProposalOutcome.APPLIED
    assert node.steps() == [AddLearner(3), Promote(3)]


def test_forgetting_is_tried_again() -> None:
    node = Node(Group((1, 2)), member(1), member(2), member(3, retired=True))
    node.refuses = True
    assert node.steps(2) == []
    node.refuses = False
    assert node.steps() == [ForgetNode(3)]


def test_a_group_that_is_full_still_changes() -> None:
    everybody = tuple(range(1, MEMBERS_MAX + 1))
    group = Group(everybody[:7], everybody[7:])
    nodes = [member(each, retired=each == 2) for each in (*everybody, MEMBERS_MAX + 1)]
    assert Node(group, *nodes).steps(2) == [Replace(2, 8), AddLearner(MEMBERS_MAX + 1)]


def test_learners_beyond_seven_voters_are_not_promoted() -> None:
    everybody = range(1, 10)
    node = Node(Group((1, 2, 3, 4, 5, 6, 7)), *(member(each) for each in everybody))
    assert node.steps() == [AddLearner(8), AddLearner(9)]


@pytest.mark.parametrize(
    ("both", "nodes", "expected"),
    [
        (Members((1, 2, 3), (4,)), [1, 2, 3, 4], False),
        (Members((1, 2, 4), (), (1, 2, 3)), [1, 2, 4], False),
        (Members((1, 2, 4)), [1, 2, 4], True),
        (Members((1, 2, 3)), [1, 2, 3], True),
        (Members((1, 2, 3, 5, 6, 7, 8), (4,)), [1, 2, 3, 5, 6, 7, 8, 4], True),
        (Members((1, 2, 3, 5, 6, 7, 8), (4,)), [2, 3, 5, 6, 7, 8, 4], False),
    ],
)
def test_a_node_has_its_place_when_it_counts_or_enough_others_do(
    both: Members, nodes: list[int], expected: bool
) -> None:
    """Until then it says not "ready": who replaces nodes one after the other waits for that."""
    group = Group(())
    group.both = both
    known = Nodes(b"c" * 16, 100, tuple(member(each) for each in nodes))
    assert has_joined(4, group, known) is expected  # type: ignore[arg-type]


def test_a_node_is_forgotten_when_it_has_left_the_groups_of_all_ranges() -> None:
    node = Node(Group((1, 2)), member(1), member(2), member(3, retired=True))
    node.elsewhere = {3}
    assert node.steps() == []
    assert not finished(node.service.step()), "it looks again"
    node.elsewhere = set()
    assert node.steps() == [ForgetNode(3)]


def test_only_the_root_forgets_nodes() -> None:
    node = Node(Group((1, 2, 3)), member(1), member(2), member(3, retired=True))
    node.is_root = False
    assert node.steps() == [Remove(3)]
    assert finished(node.service.step())


def test_a_node_leaves_the_root_last() -> None:
    node = Node(Group((1, 2, 3)), member(1), member(2), member(3, retired=True), member(4))
    node.in_other_ranges = {3}
    assert node.steps() == [AddLearner(4)]
    assert not finished(node.service.step()), "it looks again"
    node.in_other_ranges = set()
    assert node.steps() == [Replace(3, 4), ForgetNode(3)]
