"""The lanes of a client: one for each range, with the calls that wait for the node which leads it.

::

    one range is known        every call ─▶ lane 1 ─▶ link to its leader
    several ranges are known  a call's contract ─┬─▶ lane 1 (the root's) ─▶ link to node 1
                                                 ├─▶ lane 5 ─┬───────────▶ link to node 2
                                                 ├─▶ lane 6 ─┘
                                                 └─▶ astray: its keys lie in a gap of the cache

A client begins with one lane, which takes every call without a look at it, and has several from the
first descriptor on that does not contain every key. The contract of a request
(:mod:`postroom.ranges.contract`) then tells its lane. The calls astray wait until a node has told
whose keys they have.

A commit goes to the range of its anchor, which asks the other ones. Any other request that concerns
several ranges is refused here (:func:`several_ranges`), unless it can be cut (:mod:`.spreading`). A
client may be wrong about the ranges. It refuses only a request that a node has refused as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from postroom.client.routing.calls import CallWay, RangeName, RemoteCall
from postroom.client.routing.holdings import Holdings
from postroom.client.routing.links import Link
from postroom.client.routing.range_cache import RangeCache, is_whole, overlap
from postroom.errors import Error, Invalid
from postroom.ranges.bounds import no_such_range
from postroom.ranges.contract import ROOT_ID, Concern, KeySet, RangeIds, Scope
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.requests import ReleaseLocks

ASTRAY: Final = 0
"""The id of the lane of the calls whose range is not known."""


class LaneTally:
    """The number of calls that wait in the lanes of a client."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


class Lane:
    """The calls for one range, and the link to the node that leads it.

    The queue has two lines. Commits that may wait for locks of others have a line of their own:
    when the largest number of them is under way, all others pass.

    Attributes:
        range_id: the id of the range.
        descriptor: the range, as far as it is known.
        target: the link to the node that leads; ``None``: it is searched for.
        hint: an address to be tried first.
        queue: the calls to be sent, in order, except those in ``commits``.
        commits: the commits to be sent that crowd, in order.
        holdings: the things that the leaseholder holds for this client.
    """

    __slots__ = (
        "_waiting", "commits", "descriptor", "hint", "holdings", "queue", "range_id", "target",
    )  # fmt: skip

    def __init__(self, descriptor: RangeDescriptor, holdings: Holdings, waiting: LaneTally) -> None:
        self._waiting = waiting
        self.range_id = descriptor.range_id
        self.descriptor = descriptor
        self.target: Link | None = None
        self.hint: str | None = None
        self.queue: deque[RemoteCall] = deque()
        self.commits: deque[RemoteCall] = deque()
        self.holdings = holdings

    def calls_waiting(self) -> int:
        """Return how many calls wait here."""
        return len(self.queue) + len(self.commits)

    def __iter__(self) -> Iterator[RemoteCall]:
        """Return all calls that wait here."""
        yield from self.queue
        yield from self.commits

    @property
    def name(self) -> RangeName:
        """Return the range, as a request names it."""
        return self.range_id, self.descriptor.generation

    # --- the leader

    def follow(self, link: Link) -> None:
        """Note that the node at the end of ``link`` leads the range."""
        self.target = link
        link.lanes.append(self)

    def leave(self, hint: str | None = None) -> None:
        """Note that the target does not lead the range any more; ``hint`` may."""
        if self.target is not None:
            self.target.lanes.remove(self)
            self.target = None
        self.hint = hint

    # --- calls

    def append(self, call: RemoteCall) -> None:
        """Append ``call`` to its line."""
        self._waiting.calls += 1
        (self.commits if call.crowds else self.queue).append(call)

    def next_call(self, link: Link) -> RemoteCall | None:
        """Take out the first call that ``link`` has room for; ``None``: there is none."""
        chosen: deque[RemoteCall] | None = None
        for line in (self.queue, self.commits):
            if (
                line and (line[0].done or link.has_room(line[0]))
                and (chosen is None or line[0].number < chosen[0].number)
            ):  # fmt: skip
                chosen = line
        if chosen is None:
            return None
        self._waiting.calls -= 1
        return chosen.popleft()

    def return_first(self, calls: list[RemoteCall]) -> None:
        """Put ``calls`` before all others, in their order."""
        self._waiting.calls += len(calls)
        for call in reversed(calls):
            (self.commits if call.crowds else self.queue).appendleft(call)

    def drop_done(self) -> None:
        """Forget the calls in the queue without a waiting caller."""
        before = self.calls_waiting()
        self.queue = deque(call for call in self.queue if not call.done)
        self.commits = deque(call for call in self.commits if not call.done)
        self._waiting.calls -= before - self.calls_waiting()

    def take_queue(self) -> list[RemoteCall]:
        """Empty the queue; return its calls with a waiting caller."""
        taken = [call for call in self if not call.done]
        self._waiting.calls -= self.calls_waiting()
        self.queue.clear()
        self.commits.clear()
        return taken


class Lanes:
    """The lanes of a client; see the module.

    Attributes:
        only: the lane that takes every call; ``None``: there are several ranges.
        by_id: the lanes by the ids of their ranges.
        astray: the lane of the calls whose range is not known.
        cache: the known ranges.
        locking: the transactions for whose end others may wait.
    """

    def __init__(self) -> None:
        self.locking: set[bytes] = set()
        self.cache = RangeCache()
        self._waiting = LaneTally()
        first = Lane(RangeDescriptor(ROOT_ID), Holdings(self.locking), self._waiting)
        self.only: Lane | None = first
        self.by_id = {first.range_id: first}
        self.astray = Lane(RangeDescriptor(ASTRAY), Holdings(self.locking), self._waiting)

    def __iter__(self) -> Iterator[Lane]:
        """Return the lanes of ranges."""
        return iter(self.by_id.values())

    @property
    def are_several(self) -> bool:
        """Return whether the store has several ranges, as far as is known."""
        return self.only is None

    @property
    def root(self) -> Lane:
        """Return the lane of the range with the records of which the store has one each."""
        return self.by_id[ROOT_ID]

    def drop_done(self) -> None:
        """Forget the calls in lanes without a waiting caller."""
        for lane in (*self, self.astray):
            lane.drop_done()

    def calls(self) -> Iterator[RemoteCall]:
        """Yield the calls that wait in lanes."""
        for lane in (*self, self.astray):
            yield from lane

    def waiting(self) -> int:
        """Return how many calls wait in lanes."""
        return self._waiting.calls

    def wanted(self) -> list[Lane]:
        """Return the lanes whose leader is not known."""
        wanted = [lane for lane in self if lane.target is None]
        return [*wanted, self.astray] if self.astray.queue or self.astray.commits else wanted

    def take_queue(self) -> list[RemoteCall]:
        """Empty all lanes; return the calls with a waiting caller."""
        return [call for lane in (*self, self.astray) for call in lane.take_queue()]

    def close(self) -> None:
        """Empty all lanes; every later call goes to one without a target."""
        for lane in self:
            lane.leave()
        self.take_queue()
        self.only = self.root

    def holds(self) -> bool:
        """Return whether anything is held for this client."""
        return any(lane.holdings for lane in self)

    def ended(self, transaction_id: bytes) -> None:
        """Note that a transaction was committed or rolled back, or cannot be."""
        for lane in self:
            lane.holdings.ended(transaction_id)

    # --- the lane of a call

    def of_sent(self, call: RemoteCall) -> Lane:
        """Return the lane of a call that was sent; the root's, if its range is gone."""
        return self.root if call.way is None else self.by_id.get(call.way.range_id, self.root)

    def of(self, call: RemoteCall) -> Lane:
        """Return the lane in which a call waits, or from which it is sent.

        Raises:
            Invalid: the call concerns several ranges, or one that does not exist.
        """
        if self.only is not None:
            return self.only
        way = call.way = call.way or CallWay()
        concerns = list(call.request.participants())
        owners = self._owners(concerns[:1])  # a commit is decided there
        if len(owners) > 1 and None not in owners and way.is_stray:
            raise several_ranges(len(owners))
        if None in owners:
            if self.cache.has_gap():
                way.range_id, way.named = ASTRAY, None
                return self.astray
            if way.is_stray:
                raise no_such_range(*sorted(_named_ids(concerns)))
            self.direct(way, self.root, is_named=False)  # its node may know the range
            return self.root
        first = min(owners, key=_start, default=None)
        lane = self.by_id[ROOT_ID if first is None else first.range_id]
        self.direct(way, lane, is_named=first is not None and Scope.WHOLE_STORE not in concerns)
        return lane

    def range_of(self, key: bytes) -> int:
        """Return the id of the range that contains a key, from any thread; 0: it is not known."""
        only = self.only
        if only is not None:
            return only.range_id
        try:
            owner = self.cache.owner(key)
        except LookupError:  # it is being changed
            return 0
        return 0 if owner is None else owner.range_id

    def span_of(self, key: bytes) -> tuple[bytes, bytes | None] | None:
        """Return the span of the range of a key, from any thread.

        ``None``: it is not known, or all keys.
        """
        if self.only is not None:
            return None
        try:
            owner = self.cache.owner(key)
        except LookupError:  # it is being changed
            return None
        return None if owner is None else (owner.start, owner.end)

    def at(self, key: bytes) -> Lane:
        """Return the lane of the range that contains a key; the root's, if that is not known."""
        owner = self.cache.owner(key)
        return self.root if owner is None else self.by_id[owner.range_id]

    def of_range(self, call: RemoteCall, range_id: int) -> Lane:
        """Return the lane of a range, to which a call goes by the id."""
        lane = self.by_id[range_id]
        way = call.way = call.way or CallWay()
        self.direct(way, lane, is_named=type(call.request) is not ReleaseLocks)
        return lane

    def direct(self, way: CallWay, lane: Lane, *, is_named: bool = True) -> None:
        """Have a call go to the range of ``lane``, named or not."""
        way.range_id = lane.range_id
        way.named = lane.name if is_named else None

    def _owners(self, concerns: list[Concern]) -> set[RangeDescriptor | None]:
        """Return the ranges of what a request concerns; ``None`` among them: a gap."""
        owners: set[RangeDescriptor | None] = set()
        for each in concerns:
            if isinstance(each, KeySet):
                owners |= self.cache.owners(each)
            elif isinstance(each, RangeIds):
                owners |= {self.cache.by_id(range_id) for range_id in each.ids}
            elif each is Scope.ROOT:
                owners.add(self.cache.by_id(ROOT_ID))
            elif each is Scope.WHOLE_STORE:
                owners |= self.cache.owners(KeySet(spans=((b"", None),)))
        return owners

    # --- news of ranges

    def learn(
        self, descriptors: Iterable[RangeDescriptor], teller: int, *, leads: bool = False
    ) -> bool:
        """Take descriptors that a node has told; return whether lanes have changed.

        Args:
            descriptors: the ranges.
            teller: the node.
            leads: whether it leads these ranges itself.
        """
        if not self.cache.learn(descriptors, teller, leads=leads):
            return False
        known = list(self.cache)
        if self.only is not None and len(known) == 1 and is_whole(known[0]):
            self.only.descriptor = known[0]
            return False
        self._divide(known)
        return True

    def expect(self, descriptors: Iterable[RangeDescriptor], link: Link) -> None:
        """Expect the node at the end of ``link`` to lead ranges whose leaders are not known."""
        for each in descriptors:
            lane = self.by_id.get(each.range_id)
            if lane is not None and lane.target is None:
                lane.follow(link)

    def refute(self, name: RangeName) -> None:
        """Forget a range that is not where it should be; its calls go astray."""
        if self.only is None and self.cache.refute(*name):
            self._divide(list(self.cache))

    def _divide(self, known: list[RangeDescriptor]) -> None:
        """Have a lane for each known range, and for the root."""
        before = list(self)
        ids = {each.range_id for each in known}
        for lane in before:
            if lane.range_id not in ids and lane.range_id != ROOT_ID:
                lane.leave()
                del self.by_id[lane.range_id]
                for call in lane.take_queue():
                    self.astray.append(call)
        for each in known:
            if each.range_id not in self.by_id:
                self._add(each, [lane for lane in before if overlap(lane.descriptor, each)])
        for each in known:
            self.by_id[each.range_id].descriptor = each
        root = self.by_id[ROOT_ID]
        self.only = root if len(known) == len(self.by_id) == 1 and is_whole(known[0]) else None

    def _add(self, descriptor: RangeDescriptor, before: list[Lane]) -> None:
        """Add the lane of a range whose keys belonged to the ranges of other lanes ``before``.

        The node that led them probably leads this range, and may hold something for this client.
        """
        lane = Lane(descriptor, Holdings(self.locking), self._waiting)
        self.by_id[lane.range_id] = lane
        for other in before:
            lane.holdings.take_over(other.holdings)
            if other.target is not None:
                lane.hint = other.target.address


def _named_ids(concerns: Iterable[Concern]) -> set[int]:
    """Return the ids of ranges that a request names."""
    return {id_ for each in concerns if isinstance(each, RangeIds) for id_ in each.ids}


def _start(descriptor: RangeDescriptor | None) -> bytes:
    return b"" if descriptor is None else descriptor.start


def several_ranges(count: int) -> Error:
    """Return the error for a call that concerns several ranges."""
    return Invalid(
        f"the call concerns keys of {count} ranges, and may concern one; nothing was changed: ask "
        "for the keys of one range at a time (db.ranges() lists them)"
    )
