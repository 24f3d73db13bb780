"""A client's request while it is at the node, and who is told of its answer."""

from __future__ import annotations

from typing import Any, Final, Protocol

from postroom.messaging.queues.requests import ClaimQueue
from postroom.messaging.requests import AwaitQuiet, ReapQueue
from postroom.ranges.calls import Call
from postroom.ranges.requests import GetForUpdate, Protect, ScanChanges, Unprotect

_MAY_WAIT: Final = frozenset({AwaitQuiet, ClaimQueue, GetForUpdate, ReapQueue, ScanChanges})


class Owner(Protocol):
    """The session."""

    def completed(self, call: Asked, result: Any, error: BaseException | None) -> None:
        """The node has answered."""

    def protected(self, request: Protect | Unprotect, moment: int) -> None:
        """The node has done that for this client."""


class Asked(Call):
    """A client's request at this node.

    Attributes:
        owner: the session.
        number: by which the client knows it.
        size: its share of its frame's bytes.
        waits: for something to happen.
    """

    __slots__ = ("number", "owner", "size", "waits")

    def __init__(self, owner: Owner, number: int, request: Any, size: int) -> None:
        self.request = request
        self.urgent = True
        self.token = None
        self.cancelled = False
        self.owner: Owner = owner
        self.number = number
        self.size = size
        self.waits = type(request) in _MAY_WAIT and getattr(request, "wait", True)

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Tell the session."""
        self.owner.completed(self, result, error)


class Protecting(Asked):
    """``Protect`` or ``Unprotect``."""

    __slots__ = ()

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Tell the session, which takes note of it first."""
        if error is None:
            self.owner.protected(self.request, result)
        self.owner.completed(self, result, error)


class TakenBack(Call):
    """Takes back what a client had asked for that is gone."""

    __slots__ = ()

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Nobody waits."""
