"""A client's request while it is at the node, and the session that gets its answer."""

from __future__ import annotations

from typing import Any, Protocol

from postroom.ranges.calls import Call
from postroom.ranges.contract import UNTIL_IT_HAPPENS
from postroom.ranges.requests import Protect, Unprotect


class CallOwner(Protocol):
    """The session."""

    principal: str

    def completed(self, call: ClientCall, result: Any, error: BaseException | None) -> None:
        """Take the node's answer to ``call``."""

    def protected(self, request: Protect | Unprotect, timestamp: int) -> None:
        """Note that the node has protected, or released, a timestamp for this client."""


class ClientCall(Call):
    """A client's request at this node.

    Attributes:
        owner: the session.
        principal: the session's principal.
        number: the number that the client has given it.
        size: its share of its frame's bytes.
        waits: whether it waits for an event.
    """

    __slots__ = ("number", "owner", "principal", "size", "waits")

    def __init__(self, owner: CallOwner, number: int, request: Any, size: int) -> None:
        self.request = request
        self.urgent = True
        self.token = None
        self.cancelled = False
        self.owner: CallOwner = owner
        self.principal = owner.principal
        self.number = number
        self.size = size
        self.waits = request.wait_seconds_max == UNTIL_IT_HAPPENS and request.waits()

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Tell the session."""
        self.owner.completed(self, result, error)


class Protecting(ClientCall):
    """A ``Protect`` or ``Unprotect`` of a client."""

    __slots__ = ()

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Tell the session, which takes note of it first."""
        if error is None:
            self.owner.protected(self.request, result)
        self.owner.completed(self, result, error)


class TakenBack(Call):
    """A request that undoes an earlier one of a client that is gone."""

    __slots__ = ()

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Ignore the answer, for which no client waits."""
