"""Who is in a group, and how that changes: one member at a time (dissertation, section 4.1).

::

    AddLearner(n)            Promote(n)              Remove(n)
    outsider ──────▶ learner ──────────▶ voter ──────────────▶ outsider
                        └──────────────── Remove(n) ───────────────▲

A *voter* is counted: for commits and in elections. A *learner* receives entries and snapshots and
is counted for nothing, so that a member which has yet to catch up holds nobody up (section 4.2.1).
When it has caught up is for the caller to judge (:meth:`postroom.raft.group.Group.progress`).

Two sets of voters that differ by one member cannot have majorities without a common member. That is
why a change is refused while an earlier one is not yet applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias, assert_never

import msgspec

from postroom.raft.state_machine import NodeId

MEMBERS_MAX: Final = 64

NodeIds: TypeAlias = Annotated[tuple[NodeId, ...], msgspec.Meta(max_length=MEMBERS_MAX)]


class Members(msgspec.Struct, frozen=True, array_like=True):
    """A group's members."""

    voters: NodeIds
    learners: NodeIds = ()

    @property
    def is_sound(self) -> bool:
        """Whether this can be a group: somebody votes, and nobody is in it twice."""
        everybody = (*self.voters, *self.learners)
        return len(self.voters) > 0 and len(set(everybody)) == len(everybody)


@dataclass(frozen=True, slots=True)
class AddLearner:
    """Begin to feed ``node``, which is no member."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Promote:
    """Count ``node``, a learner, from now on."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Remove:
    """Let ``node``, a voter or a learner, go. The last voter stays."""

    node: NodeId


Change: TypeAlias = AddLearner | Promote | Remove


def changed(members: Members, change: Change) -> Members | None:
    """``members`` after ``change``; ``None`` if that makes no sense."""
    node, voters, learners = change.node, members.voters, members.learners
    match change:
        case AddLearner():
            is_new = node not in voters and node not in learners
            full = len(voters) + len(learners) >= MEMBERS_MAX
            return Members(voters, (*learners, node)) if is_new and not full else None
        case Promote():
            return Members((*voters, node), _without(learners, node)) if node in learners else None
        case Remove():
            is_member = node in voters or node in learners
            staying = Members(_without(voters, node), _without(learners, node))
            return staying if is_member and staying.is_sound else None
        case _:
            assert_never(change)


def _without(nodes: tuple[NodeId, ...], gone: NodeId) -> tuple[NodeId, ...]:
    return tuple(node for node in nodes if node != gone)
