"""The claims that wait for messages of a queue, and the order in which they are served.

::

    ClaimQueue ─▶ waits ── a proposal leases messages to it ── applied ─▶ granted ─▶ answered
                    └─ cancelled, or its client has gone ─▶ given up; what it got goes back

A claim is a read that may have to wait. Each claim waits for a token of its own, its
:class:`WaitingClaim`. The claim whose consumer holds the fewest messages is served next; among
equals, the one that was served longest ago. Thus messages go round, and a slow consumer gets
fewer. A consumer is known here as long as it waits. The tables of leases count the messages that it
holds, in all ranges of the node.

Claims that wait for all of these ranges (:mod:`.node_claims`) stand in line with those of the
range. One that gets something becomes one of the range until it is answered.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeAlias

import msgspec

from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection, StoredQueueMessage
from postroom.messaging.queues.node_claims import Alike, NodeClaim, NodeClaims
from postroom.messaging.queues.records import Entry
from postroom.ranges import checks
from postroom.ranges.checks import Headers

WISHES_KEPT: Final = 1000

_encode = msgspec.msgpack.encode


class Wish:
    """The messages that a consumer takes, by its selection.

    Args:
        selection: the selection that the consumer gave.
        read_headers: a function that reads the headers of a message.

    Attributes:
        kinds: the kinds that it takes; ``None``: any.
        looks_closer: whether it depends on more than the kind.
        cursor: the key up to which the stored messages were searched for those that are not in
            memory; ``None``: to the end.
    """

    __slots__ = (
        "_end", "_headers", "_is_again", "_missed", "_missed_at", "_start", "_where", "cursor",
        "kinds", "looks_closer",
    )  # fmt: skip

    def __init__(self, selection: ClaimSelection, read_headers: Callable[[Entry], Headers]) -> None:
        self._start, self._end = selection.start, selection.end
        self._where = selection.where
        self._headers = read_headers
        self.kinds = None if selection.kinds is None else frozenset(selection.kinds)
        self.looks_closer = bool(checks.names(self._where) or self._start or self._end is not None)
        self.cursor: bytes | None = b""
        self._missed: bytes | None = None
        self._missed_at = 0
        self._is_again = False

    def misses(self, key: bytes, additions: int) -> None:
        """Note a message that it takes, but whose group may not fire now.

        Args:
            key: the key of the message.
            additions: the ``additions`` of the ready cache now; they rise when the group is freed.
        """
        if self._missed is None:
            self._missed, self._missed_at = key, additions
        elif key < self._missed:
            self._missed = key

    def look_again(self, additions: int) -> bool:
        """Go back to the first missed message if a group was freed since; return whether it did.

        It goes back again only after all messages behind that one have been looked at.
        """
        missed, cursor = self._missed, self.cursor
        self._is_again &= cursor is not None
        if missed is None or additions == self._missed_at:
            return False
        if cursor is not None and (self._is_again or missed >= cursor):
            return False
        self._is_again = cursor is not None
        self.cursor, self._missed = missed, None
        return True

    def takes(self, entry: Entry) -> bool:
        """Return whether it takes this message."""
        if self.kinds is not None and entry.kind not in self.kinds:
            return False
        if not self.looks_closer:
            return True
        if entry.key < self._start or (self._end is not None and entry.key >= self._end):
            return False
        found, where = checks.names(self._headers(entry)), checks.names(self._where)
        return all(
            name in found and checks.content_of(found[name]) == checks.content_of(where[name])
            for name in where
        )

    def may_take(self, entry: Entry) -> bool:
        """Return whether it may take this message, as far as the entry tells."""
        if self.kinds is not None and entry.kind not in self.kinds:
            return False
        return entry.key >= self._start and (self._end is None or entry.key < self._end)


def takes_all(selection: ClaimSelection) -> bool:
    """Return whether a selection leaves nothing out."""
    return not (
        selection.start
        or selection.end is not None
        or selection.kinds is not None
        or checks.names(selection.where)
    )


class Wishes:
    """The wishes of the consumers of a queue, each once.

    Args:
        read_headers: a function that reads the headers of a message.
    """

    def __init__(self, read_headers: Callable[[Entry], Headers]) -> None:
        self._headers = read_headers
        self._wishes: dict[bytes, Wish] = {}
        self._forget_at = WISHES_KEPT

    def __iter__(self) -> Iterator[Wish]:
        return iter(self._wishes.values())

    def of(
        self, selection: ClaimSelection, selected: Callable[[], Container[bytes]]
    ) -> Wish | None:
        """Return the wish of a selection, or ``None`` if it leaves nothing out.

        Args:
            selection: the selection of a claim.
            selected: returns the selections, packed, whose wishes are kept.
        """
        if takes_all(selection):
            return None
        packed = _encode(selection)
        wish = self._wishes.get(packed)
        if wish is None:
            if len(self._wishes) >= self._forget_at:
                used = selected()
                self._wishes = {k: w for k, w in self._wishes.items() if k in used}
                self._forget_at = max(2 * len(self._wishes), WISHES_KEPT)
            self._wishes[packed] = wish = Wish(selection, self._headers)
        return wish

    def left_out(self, key: bytes, entry: Entry) -> None:
        """Note an entry that is stored and not in memory, so that wishes search it there."""
        for wish in self:
            if (wish.cursor is None or key < wish.cursor) and wish.may_take(entry):
                wish.cursor = key

    def begin_again(self) -> None:
        """Search the stored messages from the beginning for all wishes."""
        for wish in self:
            wish.cursor = b""


@dataclass(slots=True, eq=False)
class WaitingClaim:
    """A claim that waits, and the token of its call.

    Attributes:
        request: the claim.
        wish: what it takes; ``None``: anything.
        messages: the messages that a proposal leases to it, with their ``size`` in bytes.
        granted: whether it is answered: that proposal is applied, or there is nothing for it.
        refused: the error with which it is answered.
        looked_at: the ``additions`` of the ready cache when there was nothing for it.
        served: a number that rises each time a claim is served.
        busy: how many messages its consumer holds.
        of_node: the claim for all ranges of the node that it stands for, if it does.
    """

    request: ClaimQueue
    wish: Wish | None
    messages: list[StoredQueueMessage] = field(default_factory=list)
    size: int = 0
    granted: bool = False
    refused: Exception | None = None
    looked_at: int = 0
    served: int = 0
    busy: int = 0
    of_node: NodeClaim | None = None


Placed: TypeAlias = tuple[int, int, WaitingClaim]
"""A waiting claim in line: its consumer's messages, its ``served``, and itself. All differ."""


class Consumers:
    """The claims on one queue that wait. Its length is their number.

    Iteration goes over those of the range: of those for all ranges, it has the ones that are taken.

    Args:
        queue: the name of the queue.
        node: the claims for all ranges of the node.
        wish_of: a function that returns what a selection takes.
    """

    def __init__(
        self, queue: str, node: NodeClaims, wish_of: Callable[[ClaimSelection], Wish | None]
    ) -> None:
        self._queue = queue
        self._node, self._of_node = node, node.numbers
        self._wish_of = wish_of
        self._waiters: dict[int, WaitingClaim] = {}
        self._looked_at: dict[Wish | None, int] = {}

    def __len__(self) -> int:
        return len(self._waiters) + self._of_node.get(self._queue, 0)

    def __iter__(self) -> Iterator[WaitingClaim]:
        return iter(self._waiters.values())

    @property
    def of_range(self) -> int:
        """Return how many of them wait for this range alone."""
        return len(self._waiters)

    def selected(self) -> set[bytes]:
        """Return the selections of all of them, packed."""
        own = {_encode(waiter.request.selection) for waiter in self}
        return own.union(self._node.selections(self._queue))

    def ids(self) -> set[bytes]:
        """Return the ids of the consumers that wait."""
        of_node = (each.request for alike in self._node.alike(self._queue) for each in alike)
        return {each.request.consumer for each in self} | {each.consumer for each in of_node}

    def room(self, most: int) -> int:
        """Return for how many messages claims wait that have none, up to a number."""
        of_node = (each.request for alike in self._node.alike(self._queue) for each in alike)
        requests = chain((each.request for each in self if not each.messages), of_node)
        found = 0
        for each in requests:
            found += each.messages_max
            if found >= most:
                return most
        return found

    def have_all(self) -> bool:
        """Return whether all of them have got something."""
        return self._queue not in self._of_node and all(each.messages for each in self)

    def of(self, request: ClaimQueue) -> WaitingClaim | None:
        """Return the waiter of this very request, or `None`."""
        waiter = self._waiters.get(id(request))
        return waiter if waiter is not None and waiter.request is request else None

    def add(self, waiter: WaitingClaim) -> None:
        """Add a claim that waits."""
        self._node.served += 1
        waiter.served = self._node.served
        self._waiters[id(waiter.request)] = waiter

    def remove(self, waiter: WaitingClaim) -> None:
        """Remove a claim that was answered or given up."""
        self._waiters.pop(id(waiter.request), None)

    def take(self, waiter: WaitingClaim) -> None:
        """Take a claim that was given something, if it waits for all ranges."""
        claim = waiter.of_node
        if claim is not None and claim.taken is None:
            self._waiters[id(waiter.request)] = waiter
            self._node.draw(claim, self, waiter)

    def _put_back(self, waiter: WaitingClaim) -> bool:
        """Have a claim wait for all ranges again; return false if it does not."""
        if waiter.of_node is None:
            return False
        self.remove(waiter)
        self._node.put_back(waiter.of_node)
        return True

    def forget_ungranted(self) -> None:
        """Take the messages of an aborted proposal from the claims that it gave them to."""
        self._looked_at.clear()
        for waiter in list(self):
            if not waiter.granted and not self._put_back(waiter):
                waiter.messages, waiter.size, waiter.looked_at = [], 0, 0

    def clear(self) -> list[WaitingClaim]:
        """Remove all claims and return them; those for all ranges wait elsewhere."""
        waited = [each for each in list(self) if not self._put_back(each)]
        self._waiters.clear()
        return waited

    def lose(self, error: Exception) -> None:
        """Tell the claims an error to which messages may be leased: the lease is lost."""
        for waiter in list(self):
            if waiter.of_node is not None:
                self._node.refuse(waiter.of_node, error)

    def looked(self, waiter: WaitingClaim, additions: int) -> None:
        """Note that there is nothing for a claim, and those like it, in memory or stored."""
        waiter.looked_at = additions
        if waiter.of_node is not None:
            if len(self._looked_at) >= WISHES_KEPT:
                self._looked_at.clear()
            self._looked_at[waiter.wish] = additions

    def line(self, additions: int, ready: int, *, is_complete: bool) -> list[Placed]:
        """Return the claims that there may be something for, as a heap; the first is served next.

        Args:
            additions: the ``additions`` of the ready cache.
            ready: how many messages it has.
            is_complete: whether all stored messages are in memory.
        """
        held = self._node.held
        line = []
        for waiter in self._waiters.values():
            if waiter.granted or waiter.messages:
                continue
            if waiter.looked_at != additions or self._looks_on(waiter.wish, is_complete):
                waiter.busy = held.get(waiter.request.consumer, 0)
                line.append((waiter.busy, waiter.served, waiter))
        for alike in self._node.alike(self._queue):
            wish = self._wish_of(next(iter(alike)).request.selection)
            if self._looked_at.get(wish) != additions or self._looks_on(wish, is_complete):
                line += self._first(alike, wish, ready if is_complete else len(alike))
        heapq.heapify(line)
        return line

    def _looks_on(self, wish: Wish | None, is_complete: bool) -> bool:
        """Return whether stored messages are searched for a wish that are not in memory."""
        return wish is not None and wish.cursor is not None and not is_complete

    def _first(self, alike: Alike, wish: Wish | None, most: int) -> Iterator[Placed]:
        """Yield the places of those claims for all ranges that are served first."""
        held = self._node.held
        places = ((held.get(each.request.consumer, 0), each.served, each) for each in alike)
        for busy, served, claim in heapq.nsmallest(most, places):
            yield (
                busy,
                served,
                WaitingClaim(claim.request, wish, served=served, busy=busy, of_node=claim),
            )

    def served(self, waiter: WaitingClaim) -> None:
        """Note that a claim was given a message: among equals, others come first now."""
        self._node.served += 1
        waiter.served = self._node.served
        waiter.busy += 1

    def served_all(self, line: list[Placed], number: int) -> None:
        """Note that the claims in line were given so many messages, one after the other."""
        before = self._node.served
        for place, (_, _, waiter) in enumerate(line[:number]):
            rounds = (number - 1 - place) // len(line)
            waiter.served = before + place + 1 + rounds * len(line)
            waiter.busy += rounds + 1
        self._node.served += number
