"""Whose turn it is: principals take turns, and within each of them its members.

A principal is somebody who answers for what is asked: a certificate, a token, a host. Its members
are its clients. So a program with twenty clients has as many turns as one with a single client.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Member = TypeVar("Member", bound=Hashable)


class Rounds(Generic[Member]):
    """The members that want a turn. Round robin, twice (Nagle, RFC 970)."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[Hashable, dict[Member, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._members)

    def add(self, principal: Hashable, member: Member) -> None:
        """Let a member have a turn, after those that want one already."""
        members = self._members.get(principal)
        if members is None:
            self._members[principal] = {member: None}
        else:
            members[member] = None

    def pop(self) -> Member:
        """Return whose turn it is; its principal, if it has other members, comes last from now on.

        Raises:
            StopIteration: nobody wants one.
        """
        principal = next(iter(self._members))
        members = self._members.pop(principal)
        member = next(iter(members))
        del members[member]
        if members:
            self._members[principal] = members
        return member

    def discard(self, principal: Hashable, member: Member) -> None:
        """Forget a member, if it wants a turn."""
        members = self._members.get(principal)
        if members is not None:
            members.pop(member, None)
            if not members:
                del self._members[principal]

    def clear(self) -> None:
        """Forget all members."""
        self._members.clear()
