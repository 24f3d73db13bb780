"""The first stage of a replica: requests arrive, and wait for their turn.

::

    submit ─▶ clients ─┐  principals take turns, and so do the clients of each
              upkeep ──┴─▶ shares of the next proposal ─▶ evaluated (:mod:`.batch`)
                 ▲                                           │
                 └── taken back, half at a time ◀── too large ┘

*Fairness.* A principal is the one who answers for requests: a certificate, a token, a host. Its
members are its clients. A program with twenty clients has as many turns as a program with one. A
client that sends a thousand requests at once waits for them itself. The requests of one client
stay in their order. Requests are counted, not weighed: the cost of each is bounded elsewhere.

*Shares.* Clients may keep more waiting than a proposal contains, for ever. Therefore upkeep
(deliveries, deferred updates, the collection of garbage) has a share of each proposal: bytes,
steps, and at least one request.

*Size.* Requests move more than they bring (old versions, due messages), so many small ones may
come to too large a command. They are taken back, and half as many go into the next proposal. If
that has room for one request only, clients and upkeep take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from postroom import limits
from postroom.errors import Unavailable
from postroom.ranges.calls import Call, Result

Member = TypeVar("Member", bound=Hashable)
Kept = TypeVar("Kept")

REQUESTS_AT_ONCE: Final = 2000
"""The number of requests that a proposal takes from one queue at most."""


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
        """Take the member whose turn it is. Its principal comes last from now on.

        Raises:
            StopIteration: there is none.
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


class FairQueue:
    """A queue of calls in which principals take turns. Its ``deque`` methods do as a deque's.

    Several threads may append calls at once, without a lock: calls arrive in a plain ``deque``. The
    thread that drives the node sorts them, and alone calls the other methods.

    Attributes:
        arrived, by_owner: the calls, unsorted and sorted; only to look at. Looking at both is
            quicker than asking for the length.
    """

    def __init__(self) -> None:
        self.arrived: deque[Call] = deque()
        self.by_owner: dict[object, deque[Call]] = {}
        self._rounds: Rounds[object] = Rounds()
        self._sorted = 0

    def __len__(self) -> int:
        return self._sorted + len(self.arrived)

    def __iter__(self) -> Iterator[Call]:
        self._sort()
        for calls in self.by_owner.values():
            yield from calls

    def append(self, call: Call) -> None:
        """Add the last call of its owner. Any thread may do so."""
        self.arrived.append(call)

    def appendleft(self, call: Call) -> None:
        """Add the first call of its owner."""
        self._sort()
        self._sorted += 1
        calls = self.by_owner.get(call.owner)
        if calls is None:
            self._begin(call)
        else:
            calls.appendleft(call)

    def _begin(self, call: Call) -> None:
        self.by_owner[call.owner] = deque((call,))
        self._rounds.add(call.principal, call.owner)

    def popleft(self) -> Call:
        """Take the first call of the owner that has waited longest for a turn.

        Raises:
            StopIteration: there is none.
        """
        by_owner = self.by_owner
        if self.arrived:
            if not by_owner and len(self.arrived) == 1:
                return self.arrived.popleft()
            self._sort()
        owner = self._rounds.pop()
        calls = by_owner[owner]
        call = calls.popleft()
        self._sorted -= 1
        if calls:
            self._rounds.add(call.principal, owner)
        else:
            del by_owner[owner]
        return call

    def has_others_than(self, owner: object) -> bool:
        """Return whether another owner has a call in it."""
        self._sort()
        return any(each is not owner for each in self.by_owner)

    def taken(self) -> Iterator[Call]:
        """Take calls until there is none: cheaper than ``popleft`` for many calls of one owner."""
        by_owner = self.by_owner
        while self.arrived or by_owner:
            if not by_owner and len(self.arrived) == 1:
                yield self.arrived.popleft()
                continue
            if self.arrived or len(by_owner) != 1:
                yield self.popleft()
                continue
            ((owner, calls),) = by_owner.items()
            while calls and not self.arrived:
                self._sorted -= 1
                call = calls.popleft()
                if not calls:
                    del by_owner[owner]
                    self._rounds.clear()
                yield call

    def clear(self) -> None:
        """Forget all calls."""
        self.arrived.clear()
        self.by_owner.clear()
        self._rounds.clear()
        self._sorted = 0

    def _sort(self) -> None:
        arrived, by_owner, number = self.arrived, self.by_owner, 0
        while arrived:
            call = arrived.popleft()
            number += 1
            calls = by_owner.get(call.owner)
            if calls is None:
                self._begin(call)
            else:
                calls.append(call)
        self._sorted += number


class FairCalls(Generic[Kept]):
    """Calls that wait for a turn, each with a value. Its ``dict`` methods do as a dict's.

    A call that is removed leaves its place in the order, which is passed over when it comes.

    Attributes:
        kept: the calls and their values; only to look at.
    """

    __slots__ = ("_kept", "_order", "kept")

    def __init__(self) -> None:
        self.kept = self._kept = dict[Call, Kept]()
        self._order = FairQueue()

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._kept)

    def __contains__(self, call: Call) -> bool:
        return call in self._kept

    def __setitem__(self, call: Call, kept: Kept) -> None:
        if call not in self._kept:
            self._order.append(call)
        self._kept[call] = kept

    def pop(self, call: Call) -> Kept | None:
        """Remove a call, and return its value; ``None`` if it is not there."""
        kept = self._kept.pop(call, None)
        if not self._kept:
            self._order.clear()
        return kept

    def take(self) -> tuple[Call, Kept]:
        """Take the call whose turn it is. There must be one."""
        while True:
            call = self._order.popleft()
            if call in self._kept:
                return call, self._kept.pop(call)

    def clear(self) -> None:
        """Forget all calls."""
        self._kept.clear()
        self._order.clear()


def taken(calls: dict[Call, Any] | FairCalls[Any] | FairQueue) -> list[Call]:
    """Take all calls, and return them."""
    all_of_them = list(calls)
    calls.clear()
    return all_of_them


class RefusedCalls(NamedTuple):
    """The calls that are refused while the device has hardly any room.

    Attributes:
        error: the error for them.
        upkeep: whether upkeep is refused, too, beside the requests of clients.
        deletions: whether requests of clients that free room are refused, too.
        everything: whether all requests are refused.
    """

    error: Unavailable
    upkeep: bool = False
    deletions: bool = False
    everything: bool = False

    def concerns(self, call: Call) -> bool:
        """Return whether ``call`` is refused."""
        if self.everything:
            return True
        if call.request.needs_no_room():
            return self.deletions and call.urgent
        return self.upkeep or call.urgent


Share: TypeAlias = tuple[FairQueue, int, int]
"""A queue, and its share of a proposal: bytes, and steps."""


class CommandAdmission:
    """The commands that wait for a turn; see the module.

    Attributes:
        clients: the calls that clients wait for.
        upkeep: the other ones.
        refusal: the calls that are refused; ``None``: none.
        refused: the number of calls that were refused.
        requests_max: the number of requests that the next proposal takes at most.
    """

    __slots__ = ("_upkeep_leads", "clients", "refusal", "refused", "requests_max", "upkeep")

    def __init__(self) -> None:
        self.clients = FairQueue()
        self.upkeep = FairQueue()
        self.refusal: RefusedCalls | None = None
        self.refused = 0
        self.requests_max = REQUESTS_AT_ONCE
        self._upkeep_leads = False

    def shares(self) -> tuple[Share, ...]:
        """Return the queues with their shares of the next proposal, in order."""
        if not (self.upkeep.arrived or self.upkeep.by_owner):
            return ((self.clients, limits.PROPOSAL_BYTES_MAX, limits.TURN_STEPS_MAX),)
        steps = max(limits.TURN_STEPS_MAX // 4, 1)
        room_bytes, room_steps = limits.PROPOSAL_BYTES_MAX, max(limits.TURN_STEPS_MAX - steps, 1)
        clients = self.clients, room_bytes - limits.UPKEEP_BYTES, room_steps
        upkeep = self.upkeep, limits.UPKEEP_BYTES, steps
        return (upkeep, clients) if self._upkeep_leads else (clients, upkeep)

    @property
    def is_plain(self) -> bool:
        """Return whether clients come first, none is refused, and a proposal has its usual size."""
        return (
            self.refusal is None and self.requests_max == REQUESTS_AT_ONCE
            and not (self._upkeep_leads and (self.upkeep.arrived or self.upkeep.by_owner))
        )  # fmt: skip

    def missed(self, queue: FairQueue) -> None:
        """Let a queue lead the next proposal: a long request left it no share in this one."""
        if queue:
            self._upkeep_leads = queue is self.upkeep

    def take_back(self, results: list[Result]) -> None:
        """Take back calls that made too large a command: the next one has half as many."""
        self.requests_max = len(results) // 2
        self._upkeep_leads = not self._upkeep_leads
        for call, _, _ in reversed(results):
            (self.clients if call.urgent else self.upkeep).appendleft(call)
