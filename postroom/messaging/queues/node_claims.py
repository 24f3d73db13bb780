"""The claims that wait for messages of any range that their node leads.

::

    ClaimQueue, at_node ─▶ waits ─▶ taken by one range ── its proposal is applied ─▶ answered
                             ▲              └─ it never will be ─┐
                             └───────────────────────────────────┘

A claim waits here once, however many ranges there are. All of them look here as soon as they have
something to fire. The first one takes the claim, and no other range then gives it anything. A range
that the node begins to lead, or that a split makes, serves the claims of this moment at once.

If the taking range loses its lease meanwhile, this node does not know what becomes of its proposal.
Only that claim is told ``NotLeaseholder``. Its client looks for what it was given, and gives it
back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

from postroom.errors import Error
from postroom.messaging.queues.claim_requests import Claimed, ClaimQueue, HomeSpan
from postroom.messaging.queues.definitions import no_such_queue
from postroom.ranges.calls import Call

if TYPE_CHECKING:
    from postroom.messaging.queues.consumers import Consumers, WaitingClaim, Wish

RANGES_LOOKED_AT: Final = 256
"""The number of ranges that are looked at for a claim that gets nothing in one of them."""
WITHOUT_BYTES: Final = 64 * 1024
"""The bytes of the bounds of ranges that an answer tells to have nothing for a claim."""
NOT_LEARNED: Final = -1
"""The number of a queue of which a range has yet to learn."""

_encode: Final = msgspec.msgpack.encode


@dataclass(slots=True, eq=False)
class NodeClaim:
    """A claim that waits at a node.

    Attributes:
        call: the call.
        served: its place among those that hold as much.
        selection: what it takes, packed.
        number: the number of its queue; 0: no range serves that knows it yet.
        taken: the consumers of the range that has taken it, and their waiter; ``None``: none has.
    """

    call: Call
    served: int
    selection: bytes
    number: int = 0
    taken: tuple[Consumers, WaitingClaim] | None = None

    @property
    def request(self) -> ClaimQueue:
        """Return the claim."""
        request: ClaimQueue = self.call.request
        return request


Alike: TypeAlias = dict[NodeClaim, None]
"""Claims with one selection."""


class ServingRange(Protocol):
    """The queues of a range that the node leads."""

    @property
    def span(self) -> HomeSpan:
        """Return the span of the homes that lie in the range."""

    def has_none_for(self, queue: str, wish: Wish | None) -> bool:
        """Return whether memory tells at once that a claim gets nothing in the range."""

    def look_for(self, queue: str) -> int:
        """Look for messages of a queue, since a claim waits for them.

        Returns:
            The number of the queue; 0: there is none; -1: the range has yet to learn which there
            are, and says so then (:meth:`NodeClaims.learned`).

        Raises:
            Error: the queue is set aside.
        """


class NodeClaims:
    """The claims that wait at a node. Its length is their number, with those that are taken.

    Attributes:
        served: a number that rises each time a claim is served.
        held: how many messages of all ranges here each consumer holds.
        numbers: how many claims on each queue no range has taken.
    """

    def __init__(self) -> None:
        self.served = 0
        self.held: Counter[bytes] = Counter()
        self._ranges: dict[int, ServingRange] = {}
        self._in_order: list[ServingRange] = []
        self._claims: dict[Call, NodeClaim] = {}
        self._waiting: dict[str, dict[bytes, Alike]] = {}
        self.numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._claims)

    def alike(self, queue: str) -> Iterable[Alike]:
        """Return the claims on a queue that no range has taken, by what they take."""
        return self._waiting.get(queue, {}).values()

    def selections(self, queue: str) -> Iterable[bytes]:
        """Return what these claims take, packed."""
        return self._waiting.get(queue, {}).keys()

    # --- calls

    def take(self, call: Call) -> int:
        """Have a call wait; return how many ranges were asked to look for messages."""
        self.served += 1
        claim = NodeClaim(call, self.served, _encode(call.request.selection))
        self._claims[call] = claim
        self._enter(claim)
        self._look([claim], self._ranges.values())
        return len(self._ranges)

    def _look(self, claims: list[NodeClaim], ranges: Iterable[ServingRange]) -> None:
        """Have ranges look for messages for claims; refuse these if none knows their queue."""
        queue = claims[0].request.queue
        try:
            found = [each.look_for(queue) for each in [*ranges]]
        except Error as error:
            for claim in claims:
                self.refuse(claim, error)
            return
        for claim in claims:
            claim.number = max([claim.number, *found])
            if found and not claim.number and NOT_LEARNED not in found:
                self.refuse(claim, no_such_queue(queue))

    def cancel(self, call: Call) -> bool:
        """Forget a call, and return whether it waited.

        Messages that are leased to it go back, uncounted.
        """
        claim = self._claims.get(call)
        if claim is not None:
            self._leave(claim)
        return claim is not None

    def answer(self, claim: NodeClaim, answer: Claimed) -> None:
        """Answer a claim."""
        self._leave(claim)
        claim.call.complete(answer, None)

    def refuse(self, claim: NodeClaim, error: BaseException) -> None:
        """Answer a claim with an error, unless it is over."""
        if claim.call in self._claims:
            self._leave(claim)
            claim.call.complete(None, error)

    def refuse_all(self, error: BaseException) -> None:
        """Answer all claims with an error: the node stops, or has one range."""
        for claim in list(self._claims.values()):
            self.refuse(claim, error)

    def refuse_queue(self, queue: str, number: int, error: BaseException) -> None:
        """Answer the claims on a queue with an error: it is set aside, or gone.

        Args:
            queue: its name.
            number: its number. Another queue of that name has a higher one.
            error: the error.
        """
        for claim in self._of_queue(queue):
            if claim.number <= number:
                self.refuse(claim, error)

    def _of_queue(self, queue: str) -> list[NodeClaim]:
        return [claim for alike in self.alike(queue) for claim in alike]

    # --- ranges

    def serve(self, range_id: int, queues: ServingRange) -> None:
        """Have a range serve the claims that wait, since the node leads it now."""
        self._ranges[range_id] = queues
        self._in_order.clear()
        for queue in list(self._waiting):
            self._look(self._of_queue(queue), [queues])

    def learned(self, range_id: int) -> None:
        """Have a range look again, since it has learned of queues, if the node leads it."""
        if range_id in self._ranges:
            self.serve(range_id, self._ranges[range_id])

    def serve_no_more(self, range_id: int) -> None:
        """Forget a range, which is not led here any more."""
        self._ranges.pop(range_id, None)
        self._in_order.clear()

    def without(
        self, after: bytes | None, queue: str, wish: Wish | None
    ) -> tuple[int, list[HomeSpan]]:
        """Return the spans of ranges that have nothing for a claim which does not wait.

        The ranges behind a key come first, then those from the beginning on.

        Args:
            after: the key; ``None``: the end of all keys.
            queue: the name of the queue.
            wish: what the claim takes; ``None``: anything.

        Returns:
            The number of ranges that were looked at, and the spans of those with nothing. Spans
            that touch each other are one.
        """
        if len(self._ranges) < 2:
            return 0, []
        if not self._in_order:
            self._in_order = sorted(self._ranges.values(), key=_start)
        every = self._in_order
        first = len(every) if after is None else bisect_left(every, after, key=_start)
        size, found = 0, list[HomeSpan]()
        looked_at = [*every[first:], *every[:first]][:RANGES_LOOKED_AT]
        for number, each in enumerate(looked_at):
            if not each.has_none_for(queue, wish):
                continue
            start, end = each.span
            size += len(start) + len(end or b"")
            if size > WITHOUT_BYTES:
                return number, found
            if found and found[-1][1] == start:
                start = found.pop()[0]
            found.append((start, end))
        return len(looked_at), found

    def draw(self, claim: NodeClaim, consumers: Consumers, waiter: WaitingClaim) -> None:
        """Have a range take a claim to which its proposal leases something."""
        self._withdraw(claim)
        claim.taken = consumers, waiter

    def put_back(self, claim: NodeClaim) -> None:
        """Have a claim wait again, since nothing was leased to it. Other ranges look at it anew."""
        claim.taken = None
        self._enter(claim)
        self._look([claim], self._ranges.values())

    # --- those that wait

    def _enter(self, claim: NodeClaim) -> None:
        queue = claim.request.queue
        self._waiting.setdefault(queue, {}).setdefault(claim.selection, {})[claim] = None
        self.numbers[queue] = self.numbers.get(queue, 0) + 1

    def _withdraw(self, claim: NodeClaim) -> None:
        queue = claim.request.queue
        by_selection = self._waiting[queue]
        del by_selection[claim.selection][claim]
        if not by_selection[claim.selection]:
            del by_selection[claim.selection]
        self.numbers[queue] -= 1
        if not by_selection:
            del self._waiting[queue], self.numbers[queue]

    def _leave(self, claim: NodeClaim) -> None:
        del self._claims[claim.call]
        if claim.taken is None:
            self._withdraw(claim)
        else:
            consumers, waiter = claim.taken
            consumers.remove(waiter)


def _start(queues: ServingRange) -> bytes:
    return queues.span[0]
