"""A request on its way to a store elsewhere, and what is known of its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from postroom.errors import Unavailable
from postroom.ranges.requests import ReleaseLocks, Unprotect

if TYPE_CHECKING:
    from postroom.client.remote.link import Link


class RemoteCall:
    """A request, and whom to tell; shells have subclasses with ``complete``.

    Attributes:
        request: what is asked.
        timeout_seconds: after which it is withdrawn and ends with ``DeadlineExceeded``; ``None``:
            the router's deadline, after which it ends with ``Unavailable`` or ``CommitUnknown``.
        done: told, or cancelled; nothing more will be said.
        number: what answers name it by.
        deadline: by the monotonic clock; without end for what waits at a node.
        waits: it may be parked at a node for long.
        is_commit: sending it twice is safe, and which it was must be told.
        link: where it is, or is about to be, sent; ``None``: it is queued here.
        was_sent: an attempt may have reached a node.
        maybe: an attempt may have taken effect, or may yet.
        adrift: attempts that were lost on their way, as (node, link): they may be evaluated yet.
        refused: what it was told by a node that has too much to do; it is sent again.
        refusals: how often it was.
        withdrawn: it was told to the node that it is not wanted any more; its word is awaited.
    """

    __slots__ = (
        "adrift",
        "deadline",
        "done",
        "is_commit",
        "link",
        "maybe",
        "number",
        "refusals",
        "refused",
        "request",
        "timeout_seconds",
        "waits",
        "was_sent",
        "withdrawn",
    )

    def __init__(self, request: Any, timeout_seconds: float | None = None) -> None:
        self.request = request
        self.timeout_seconds = timeout_seconds
        self.done = False
        self.number = 0
        self.deadline = 0.0
        self.waits = False
        self.is_commit = False
        self.link: Link | None = None
        self.was_sent = False
        self.maybe = False
        self.adrift: tuple[tuple[int, int], ...] = ()
        self.withdrawn = False
        self.refusals = 0
        self.refused: Unavailable | None = None

    @property
    def may_stay(self) -> bool:
        """Whether closing need not wait for it: no node is known to take it, and what it would free
        there goes with the client.
        """
        return self.link is None and isinstance(self.request, ReleaseLocks | Unprotect)

    def complete(self, result: Any, error: BaseException | None) -> None:
        """The answer, or why there is none. Called once."""
        raise NotImplementedError


class UpkeepCall(RemoteCall):
    """A request of the router's own: good for one link only as a rule, and nobody waits for it."""

    __slots__ = ()

    @property
    def may_stay(self) -> bool:
        """As for all that only frees something."""
        return self.link is None

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Nobody waits."""


class Port(Protocol):
    """What a router asks of its shell. None of it may call the router back before it returns."""

    def open(self, link: int, address: str) -> None:
        """Open a stream to ``address``, to be known as ``link``. As soon as it can be written to,
        take what the router has for it (``Router.take``); a failure is ``Router.disconnected``.
        """

    def output(self, link: int) -> None:
        """There is something to ``take`` for the link: do so soon, but after what else happens now,
        and until ``take`` answers ``None``. Not said again before that.
        """

    def close(self, link: int) -> None:
        """The stream is not used any more. Nothing need be said of it any more."""

    def alarm(self, when: float) -> None:
        """Call ``Router.tick`` at ``when`` on the monotonic clock. A later call with an earlier
        time counts; one with a later time need not.
        """
