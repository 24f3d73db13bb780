"""The members of a group, and their changes.

One member changes at a time (dissertation, section 4.1), or one takes the place of another one
(joint consensus, section 4.3).

::

    AddLearner(n)            Promote(n)              Remove(n)
    outsider ──────▶ learner ──────────▶ voter ──────────────▶ outsider
                        └──────────────── Remove(n) ───────────────▲

    Replace(old, new)                        FinishReplacement
    voters a b old ───▶ joint: majorities of (a b old) and of (a b new) ───▶ voters a b new

A *voter* is counted: for commits and in elections. A *learner* receives entries and snapshots and
is counted for nothing: a member which has yet to catch up delays no commit (section 4.2.1).
The caller judges when it has caught up (:meth:`postroom.raft.group.RaftGroup.progress`).

Two sets of voters that differ by one member cannot have majorities without a common member. For
this reason a change is refused while an earlier one is not yet applied. Sets that differ by an
exchange can: of (a b old) and (a b new), {a, old} and {b, new}. While the members are *joint*,
every decision therefore needs a majority of both sets. The leader of that time ends the joint state
by itself as soon as the joint members are applied.

Promoting first and removing afterwards would have four voters in between, of which three must
live. Joint, as many of three may fail as before and as after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias, assert_never

import msgspec

from postroom.limits import MEMBERS_MAX
from postroom.raft.interface import NodeId

NodeIds: TypeAlias = Annotated[tuple[NodeId, ...], msgspec.Meta(max_length=MEMBERS_MAX)]


class Members(msgspec.Struct, frozen=True, array_like=True):
    """The members of a group.

    Attributes:
        voters: the nodes that vote; while the members are joint, the future voters.
        learners: the nodes that are fed, and not counted.
        outgoing: the former voters while the members are joint; empty otherwise.
    """

    voters: NodeIds
    learners: NodeIds = ()
    outgoing: NodeIds = ()

    @property
    def is_joint(self) -> bool:
        """Return whether decisions need majorities of two sets of voters."""
        return bool(self.outgoing)

    @property
    def counted(self) -> NodeIds:
        """Return all nodes that vote, in the one set or in the other."""
        if not self.outgoing:
            return self.voters
        return (*self.voters, *(node for node in self.outgoing if node not in self.voters))

    @property
    def is_sound(self) -> bool:
        """Return whether this can be a group: it has a voter, and no node is in it twice."""
        everybody = (*self.counted, *self.learners)
        is_single = len(set(everybody)) == len(everybody)
        return len(self.voters) > 0 and is_single and len(set(self.outgoing)) == len(self.outgoing)


@dataclass(frozen=True, slots=True)
class AddLearner:
    """The change that begins to feed ``node``, which is no member."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Promote:
    """The change that counts ``node``, a learner, from now on."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Remove:
    """The change that removes ``node``, a voter or a learner. The last voter stays."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Replace:
    """The change that counts ``joining``, a learner, instead of ``leaving``, a voter."""

    leaving: NodeId
    joining: NodeId


@dataclass(frozen=True, slots=True)
class FinishReplacement:
    """The change that makes joint members the new ones. The leader does this by itself."""


Change: TypeAlias = AddLearner | Promote | Remove | Replace | FinishReplacement


def changed(members: Members, change: Change) -> Members | None:
    """Return ``members`` after ``change``, or ``None`` if that is impossible."""
    if members.is_joint != isinstance(change, FinishReplacement):
        return None
    match change:
        case AddLearner(node):
            return _with_learner(members, node)
        case Promote(node):
            return _with_voter(members, node)
        case Remove(node):
            return _without_member(members, node)
        case Replace(leaving, joining):
            return _joint(members, leaving, joining)
        case FinishReplacement():
            return Members(members.voters, members.learners)
        case _:
            assert_never(change)


def _with_learner(members: Members, node: NodeId) -> Members | None:
    voters, learners = members.voters, members.learners
    is_new = node not in voters and node not in learners
    full = len(voters) + len(learners) >= MEMBERS_MAX
    return Members(voters, (*learners, node)) if is_new and not full else None


def _with_voter(members: Members, node: NodeId) -> Members | None:
    if node not in members.learners:
        return None
    return Members((*members.voters, node), _without(members.learners, node))


def _without_member(members: Members, node: NodeId) -> Members | None:
    is_member = node in members.voters or node in members.learners
    staying = Members(_without(members.voters, node), _without(members.learners, node))
    return staying if is_member and staying.is_sound else None


def _joint(members: Members, leaving: NodeId, joining: NodeId) -> Members | None:
    voters, learners = members.voters, members.learners
    if leaving not in voters or joining not in learners:
        return None
    staying = tuple(joining if node == leaving else node for node in voters)
    return Members(staying, _without(learners, joining), voters)


def _without(nodes: tuple[NodeId, ...], gone: NodeId) -> tuple[NodeId, ...]:
    return tuple(node for node in nodes if node != gone)
