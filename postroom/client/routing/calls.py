"""A request on its way to a remote store, what is known of its outcome, and the clock beside it.

A client has no clock of its own that others would have to trust. Its clock is the newest timestamp
that it heard, and the time since then. Its readings go along with its requests, so that a
transaction commits after it began by both clocks. A node refuses a reading that
is too far ahead of its own clock. The cause is that another node's clock was ahead, or that the
node's own clock runs slower than the client's.

Then the client's clock stands still, except for timestamps that it hears, until the nodes' clock
has moved as time does. Otherwise each transaction after a pause would begin in the nodes' future,
again and again.

Invariant: readings never step back, unless one of them was refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from postroom.errors import Unavailable
from postroom.kv.clock import LOGICAL_BITS
from postroom.ranges.requests import ReleaseLocks, Unprotect
from postroom.ranges.whole_protections import ReleaseWhole


class CallLink(Protocol):
    """The parts of a link (:mod:`.links`) that concern the calls on it.

    Attributes:
        number: the number of the link.
    """

    number: int

    @property
    def sent(self) -> Mapping[int, RemoteCall]:
        """Return the calls that may have reached the node and are not answered, by number."""

    def withdraw(self, call: RemoteCall) -> bool:
        """Tell the node that the call is not wanted; return whether the port must be told."""


RangeName: TypeAlias = tuple[int, int]
"""The id and the generation of a range, as a request names it."""


class CallWay:
    """The way of a call among several ranges.

    Attributes:
        range_id: the range to which it goes; 0: none that is known.
        named: the range, as the node is told it; ``None``: the node finds it by the keys.
        refused: the nodes that have refused it since its last pause, each with the range named.
        is_stray: whether a node has said that another range has its keys.
        parts: the calls that are under way in its place, or have been.
    """

    __slots__ = ("is_stray", "named", "parts", "range_id", "refused")

    def __init__(self) -> None:
        self.range_id = 0
        self.named: RangeName | None = None
        self.refused: set[tuple[int, RangeName | None]] = set()
        self.is_stray = False
        self.parts: Sequence[RemoteCall] = ()


class RemoteCall:
    """A request, and its caller; shells have subclasses with ``complete``.

    Attributes:
        request: the request.
        timeout_seconds: after these it is withdrawn and ends with ``DeadlineExceeded``. ``None``:
            it has the router's deadline, after which it ends with ``Unavailable`` or
            ``CommitUnknown``.
        done: told, or cancelled; nothing more will be told.
        number: the number by which answers name it.
        deadline: on the monotonic clock; infinite for a request that waits at a node.
        waits: whether it may wait at a node for long.
        has_company: whether it is a commit for which others may wait, to leave together
            (:mod:`.links`).
        is_commit: whether it is safe to send it twice, and its caller must be told the outcome.
        crowds: whether it is the commit of a transaction that has locked nothing. It may wait for
            the locks of others, so the number of these that are under way is bounded.
        link: the link on which it is, or is about to be, sent; ``None``: it is queued here.
        way: its way among several ranges; ``None``: the client knew of one range yet.
        was_sent: whether a try may have reached a node.
        maybe: whether a try may have taken effect, or may yet.
        adrift: tries that were lost on their way, as (node, link): they may be evaluated yet.
        refused: the refusal of a node that has too much to do; the call is sent again.
        refusals: how often it was refused.
        withdrawn: whether the node was told that it is not wanted any more; the answer to that is
            awaited.
    """

    __slots__ = (
        "adrift",
        "crowds",
        "deadline",
        "done",
        "has_company",
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
        "way",
        "withdrawn",
    )

    def __init__(self, request: Any, timeout_seconds: float | None = None) -> None:
        self.request = request
        self.timeout_seconds = timeout_seconds
        self.done = False
        self.number = 0
        self.deadline = 0.0
        self.waits = False
        self.is_commit = self.has_company = self.crowds = False
        self.link: CallLink | None = None
        self.way: CallWay | None = None
        self.was_sent = False
        self.maybe = False
        self.adrift: tuple[tuple[int, int], ...] = ()
        self.withdrawn = False
        self.refusals = 0
        self.refused: Unavailable | None = None

    is_bound: ClassVar[bool] = False
    """A mark of calls that go to one node only: they end with its link, or if it refuses them."""

    def lost(self) -> None:
        """Hear that its link has ended, if it is bound."""

    def refused_there(self) -> None:
        """Hear that its node has refused it, if it is bound."""

    @property
    def may_stay(self) -> bool:
        """Return whether closing need not wait for it.

        This is true if it is on no link: what it would free at a node is freed when the client
        goes.
        """
        releases = ReleaseLocks | ReleaseWhole | Unprotect
        return self.link is None and isinstance(self.request, releases)

    @property
    def is_unwanted(self) -> bool:
        """Return whether an answer is of no use any more."""
        return self.done

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Receive the answer, or the error in its place. Called once."""
        raise NotImplementedError


class UpkeepCall(RemoteCall):
    """A request of the router's own: usually for one link only, and without a caller that waits."""

    __slots__ = ()

    @property
    def may_stay(self) -> bool:
        """Return whether closing need not wait for it: it is on no link."""
        return self.link is None

    @property
    def is_unwanted(self) -> bool:
        """Return true: no caller waits for what it would be given."""
        return True

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Ignore the answer: no caller waits."""


class Port(Protocol):
    """The calls of a router to its shell. None of them may call the router before it returns."""

    def open(self, link: int, address: str) -> None:
        """Open a stream to ``address``, with the number ``link``.

        Take the router's frames for it (``Router.take``) as soon as it can be written to. Report a
        failure by ``Router.disconnected``.
        """

    def output(self, link: int) -> None:
        """Take frames for the link soon, but after everything else that happens now.

        Go on until ``take`` returns ``None``. This is not called again before that.
        """

    def close(self, link: int) -> None:
        """Close the stream, which is not used any more. Report nothing more about it."""

    def alarm(self, when: float) -> None:
        """Call ``Router.tick`` at ``when`` on the monotonic clock.

        If this is called several times, at least the earliest time counts.
        """


WATCHED_SECONDS: Final = 5.0
"""The time after which a clock that stood is compared with the time that has passed, in seconds.

It is more than twice the time that a lease is ahead of the wall clock, by which a new leader's
clock jumps.
"""


class HeardClock:
    """The clock of a remote client.

    Args:
        monotonic: returns seconds that never go back.
    """

    __slots__ = ("_heard", "_monotonic", "_read", "_stood")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._heard = (0, 0.0)  # one value: other threads may read while it is set
        self._read = 0
        self._stood: tuple[int, float] | None = None

    def heard(self, timestamp: int) -> None:
        """Note that a node's clock showed ``timestamp`` just now."""
        now = self._monotonic()
        if self._stood is not None:
            self._watch(self._stood, timestamp, now)
        if timestamp > self._heard[0]:
            self._heard = (timestamp, now)

    def _watch(self, stood: tuple[int, float], timestamp: int, now: float) -> None:
        """Go on if the nodes' clock moves again."""
        then, since = stood
        seconds = now - since
        if seconds >= WATCHED_SECONDS:
            passed = ((timestamp - then) >> LOGICAL_BITS) / 1000
            self._stood = None if passed >= seconds / 2 else (timestamp, now)

    def refused(self, timestamp: int) -> None:
        """Stand still: a node whose clock shows ``timestamp`` has refused the last reading."""
        self._heard = self._stood = (timestamp, self._monotonic())
        self._read = timestamp

    def reading(self) -> int:
        """Return about now as a timestamp; 0 if nothing was heard yet."""
        reading, at = self._heard
        if reading and self._stood is None:
            reading += int((self._monotonic() - at) * 1000) << LOGICAL_BITS
        self._read = reading = max(self._read, reading)
        return reading
