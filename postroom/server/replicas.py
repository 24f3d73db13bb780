"""The ranges of a node, and the one door for requests to their replicas.

::

    drivers, sessions ── submit, cancel, release ──▶ Replicas ──▶ the replica that is concerned
    the node's turn ──── evaluate, deadlines, fail ──▶ └───────▶ all of them

The callers do not ask which replica answers. While the node has one range, whose replica has every
key, the door for requests is that replica's own, and costs nothing. With more ranges, the contract
of a request (:mod:`postroom.ranges.contract`) and the span map (:mod:`.span_map`) tell the replica,
and :mod:`.range_turns` which ones have something to do. A service does not come through here: it
asks the replica of its own range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from postroom.client.routing.local import ForRange
from postroom.client.routing.merges import PAGES_BY_RANGE
from postroom.client.sender import KnownRanges
from postroom.errors import Error, Invalid
from postroom.limits import LED_RANGES_A_STEP
from postroom.messaging.queues.claim_requests import ClaimQueue
from postroom.messaging.queues.node_claims import NodeClaims
from postroom.ranges.admission import RefusedCalls
from postroom.ranges.bounds import WrongRange
from postroom.ranges.calls import Call
from postroom.ranges.contract import ROOT_ID, KeySet, RangeIds, Request, Scope
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.replica import Replica
from postroom.ranges.requests import CommitTransaction, ReleaseLocks, Value
from postroom.ranges.whole_protections import ReleaseWhole
from postroom.server.hosted_range import HostedRange
from postroom.server.range_turns import RangeTurns
from postroom.server.span_map import Span, SpanMap, overlap


class Replicas:
    """The ranges of one node; see the module.

    Args:
        monotonic: seconds that never go back.

    Attributes:
        hosted: the ranges, by id, in the order of their ids.
        claims: the claims that wait for messages of any of those that the node leads.
        submit: takes a request; ``call.complete`` is called once, perhaps before this returns.
        submit_commit: takes a commit from any thread, without a lock, and returns true; false: it
            concerns several ranges, and has to be submitted.
        try_get: returns the newest value of a key, from any thread; ``None``: submit a ``Get``.
        cancel: forgets a request that still waits; returns false if it is too late for that.
        charge: charges this turn for the steps that were spent on taking requests in.
        wants_turn: returns whether ``evaluate`` would have something to do.
        evaluate: takes the turns of replicas: waiting requests become proposals.
        hurries: returns whether a request waits for the result of upkeep.
        next_deadline: returns when a turn has something to do without being woken.
    """

    submit: Callable[[Call], None]
    submit_commit: Callable[[Call], bool]
    try_get: Callable[[bytes], Value | None]
    cancel: Callable[[Call], bool]
    charge: Callable[[int], None]
    wants_turn: Callable[[], bool]
    evaluate: Callable[[], None]
    hurries: Callable[[], bool]
    next_deadline: Callable[[], float | None]

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.hosted: dict[int, HostedRange] = {}
        self.claims = NodeClaims()
        self._replicas: list[Replica] = []
        self._first: Replica
        self._spans: SpanMap[Replica] = SpanMap()
        self._turns = RangeTurns(monotonic, lambda: self._replicas, self.by_id)
        self._noted: set[int] = set()
        self._share = 0
        self._refusal: RefusedCalls | None = None
        self._is_used_up: Callable[[], bool]
        self._has_read_its_share = False
        self._on_room: Callable[[], None] | None = None
        self._on_lease: Callable[[], None] = lambda: None

    # --- the ranges

    def add(
        self, hosted: HostedRange, shorter: Mapping[int, RangeDescriptor] | None = None
    ) -> None:
        """Add a range, which contains the keys within its bounds.

        Args:
            hosted: the range.
            shorter: the descriptors of ranges that are told later that they do not contain these
                keys any more. Requests for the keys go to the new range from now on.

        Raises:
            ValueError: another range owns one of the keys.
        """
        replica = hosted.replica
        assert hosted.range_id not in self.hosted
        spans = {self.by_id(each): _span(told) for each, told in (shorter or {}).items()}
        self._spans.replace({**spans, replica: _span(replica.bounds.descriptor)})
        self.hosted = dict(sorted({**self.hosted, hosted.range_id: hosted}.items()))
        replica.memory.on_begun = self._on_lease
        replica.refuse(self._refusal)
        self._change()

    def remove(self, range_id: int) -> None:
        """Remove a range, whose requests are answered, and whose group is closed. One stays."""
        assert len(self.hosted) > 1
        hosted = self.hosted.pop(range_id)
        self._spans.replace({hosted.replica: None})
        self._turns.remove(hosted.replica)
        hosted.replica.on_room = None
        hosted.share_turns(None)
        self._change()

    def follow(self, *range_ids: int) -> None:
        """Have ranges contain what their bounds say now, all at once, as seen from any thread.

        Raises:
            ValueError: two ranges would own a key.
        """
        replicas = [self.by_id(range_id) for range_id in range_ids]
        self._spans.replace({each: _span(each.bounds.descriptor) for each in replicas})

    @property
    def have_every_key(self) -> bool:
        """Return whether the ranges here contain all keys of the store."""
        return self._spans.is_whole

    @property
    def known(self) -> KnownRanges:
        """Return the ranges here as clients in this process know them."""
        return self._spans

    def may_take(self, range_id: int, descriptor: RangeDescriptor) -> bool:
        """Return whether no other range here has, or is about to have, keys of a snapshot."""
        start, end = descriptor.start, descriptor.end
        return not any(
            overlap((start, end), (known.start, known.end))
            for hosted in self.hosted.values() if hosted.range_id != range_id
            for known in hosted.replica.descriptors()
        )  # fmt: skip

    def _change(self) -> None:
        """Have requests go straight to the only replica, or be sent to one of several."""
        self._replicas = [hosted.replica for hosted in self.hosted.values()]
        self._first = first = self._replicas[0]
        for replica in self._replicas:
            replica.on_room = None
        self._set_on_room()
        self.charge = first.charge
        if len(self._replicas) == 1:
            self.claims.refuse_all(WrongRange(first.bounds.descriptor))
            self.submit, self.try_get, self.cancel = first.submit, first.try_get, first.cancel
            self.submit_commit = first.submit_commit
            self._is_used_up = first.is_used_up
            self.wants_turn, self.hurries = first.wants_turn, first.hurries
            self.evaluate, self.next_deadline = first.turn, first.next_deadline
        else:
            turns = self._turns
            self.submit, self.try_get, self.cancel = self._route, self._try_get, self._cancel
            self.submit_commit = self._route_commit
            self._is_used_up = self._is_any_used_up
            self.wants_turn, self.hurries = turns.wants_turn, turns.hurries
            self.evaluate, self.next_deadline = self._evaluate, turns.next_deadline
        self._share_turns()

    def _share_turns(self) -> None:
        """Have the wake-ups of several ranges noted, and those of an only one not."""
        self._turns.lines = None
        has_several = len(self._replicas) > 1
        note = self._turns.note if has_several else None
        for range_id, hosted in self.hosted.items():
            if (range_id in self._noted) != has_several:
                hosted.share_turns(note)
        self._noted = set(self.hosted) if has_several else set()

    def share_values(self, values_bytes: int, changed: HostedRange) -> None:
        """Divide the memory for values among the ranges that are served here.

        Shares are halved, and halved again, so that few changes of leases empty the caches.

        Args:
            values_bytes: the size of that memory.
            changed: the range that has begun, or ceased, to be served.
        """
        hosted = self.hosted.values()
        serving = sum([each.is_serving for each in hosted])
        if len(hosted) == 1:
            return
        before = self._share
        if serving:
            self._share = values_bytes >> (serving - 1).bit_length()
        for each in (changed,) if self._share == before else hosted:
            each.resize_cache(self._share if each.is_serving else 0)

    def by_id(self, range_id: int) -> Replica:
        """Return the replica of a range."""
        return self.hosted[range_id].replica

    def by_key(self, key: bytes) -> Replica | None:
        """Return the replica of the range that contains ``key``; ``None``: there is none here."""
        return self._spans.owner(key)

    def gap(self, key: bytes) -> Span:
        """Return the span around a key of no range here: no range here contains any of it."""
        return self._spans.gap(key)

    def by_span(self, start: bytes, end: bytes | None) -> tuple[Replica, ...]:
        """Return the replicas of the ranges that contain a part of a span, in order of keys."""
        return self._spans.owners(start, end)

    @property
    def version(self) -> int:
        """Return a number that changes whenever a key has got another owner."""
        return self._spans.version

    # --- requests, with several ranges

    def _route(self, call: Call) -> None:
        """Submit a request to the replica that it concerns, or refuse it."""
        request = call.request
        if type(request) is ForRange:
            self._submit_for_range(call, request)
            return
        single = request.single_keys()
        owner = None if single is None else self._spans.owner(single[0])
        if owner is None:
            self._route_others(call)
            return
        is_within = owner.bounds.contains_keys(single)
        call.taken_by, call.within = owner, owner.bounds.descriptor if is_within else None
        owner.submit(call)
        if type(request) is not CommitTransaction and owner.is_used_up():
            self._is_used_up_by(owner)

    def _submit_for_range(self, call: Call, request: ForRange) -> None:
        """Submit a request to the range that it names."""
        call.request = request.request
        hosted = self.hosted.get(request.range_id)
        if hosted is None:
            call.complete(None, self._wrong_range(KeySet(spans=((b"", None),))))
        else:
            self.submit_to(hosted.replica, call)

    def _route_others(self, call: Call) -> None:
        """Submit a request that does not concern single keys of one range here, or refuse it."""
        request = call.request
        if type(request) is ReleaseLocks:
            for replica in self._replicas:
                replica.release_locks(request.transaction_id)
            call.complete(None, self.failed)
            return
        if type(request) is ReleaseWhole:
            self.by_id(ROOT_ID).protections.release(request.at)
            call.complete(None, self.failed)
            return
        if type(request) is ClaimQueue and request.at_node:
            call.taken_by = self.claims
            self.charge(self.claims.take(call) // LED_RANGES_A_STEP)
            return
        try:
            owner = self._concerned(request)
        except Error as error:
            call.complete(None, error)
        else:
            self.submit_to(owner, call)

    def _route_commit(self, call: Call) -> bool:
        """Submit a commit if all that it concerns lies in one range; return whether it does.

        Any thread may do so, without a lock, while ranges split. Others need ``submit``.
        """
        single = call.request.single_keys()
        owner = None if single is None else self._spans.owner(single[0])
        if owner is None:
            return False
        descriptor = owner.bounds.descriptor
        if not owner.bounds.contains_keys(single):
            return False
        call.taken_by, call.within = owner, descriptor
        return owner.submit_commit(call)

    def submit_to(self, replica: Replica, call: Call) -> None:
        """Submit a request to one of several replicas."""
        call.taken_by, call.within = replica, None
        replica.submit(call)
        if replica.is_used_up():
            self._is_used_up_by(replica)

    def _is_used_up_by(self, replica: Replica) -> None:
        """Note that a replica has read its share of a turn."""
        self._has_read_its_share = True
        self._turns.note(replica)

    def _concerned(self, request: Request) -> Replica:
        """Return the replica that answers a request.

        Raises:
            WrongRange: no range of this node contains all that the request concerns.
            Invalid: the request concerns the range of a service.
        """
        concern = request.concerns()
        if isinstance(concern, KeySet):
            if not (concern.keys or concern.spans):
                return self._first
            owner = self._spans.owner_of_all(concern)
            if owner is None:
                raise self._wrong_range(concern, is_page=type(request) in PAGES_BY_RANGE)
            return owner
        if isinstance(concern, RangeIds):
            known = [self.hosted[id_].replica for id_ in concern.ids if id_ in self.hosted]
            if len(concern.ids) != 1 or not known:
                raise WrongRange(*(replica.bounds.descriptor for replica in known))
            return known[0]
        if concern is Scope.NODE:
            return self._first
        if concern is Scope.ROOT and ROOT_ID in self.hosted:
            return self.by_id(ROOT_ID)
        if concern is not Scope.RANGE:
            raise self._wrong_range(KeySet(spans=((b"", None),)))
        raise Invalid(
            f"{type(request).__name__} concerns the range of a service, and this node has "
            f"{len(self._replicas)} ranges; nothing was changed: ask that range"
        )

    def _wrong_range(self, concern: KeySet, *, is_page: bool = False) -> WrongRange:
        """Return the error for keys that no range here contains all of, with what is known.

        A client that asks for a page is told the first range and the last one. It asks range after
        range, and would otherwise be told of all of them each time.
        """
        spans = (*concern.spans, *((key, key + b"\x00") for key in concern.keys))
        known = [replica for span in spans for replica in self.by_span(*span)]
        if is_page:
            known = [*known[:1], *known[-1:]]
        return WrongRange(*(replica.bounds.descriptor for replica in dict.fromkeys(known)))

    def _try_get(self, _: bytes) -> Value | None:
        """Return nothing: its timestamp would be the last commit of one range, and too early.

        A transaction that reads in another range at this timestamp would not see all that was
        acknowledged before it began.
        """
        return None

    def _cancel(self, call: Call) -> bool:
        """Forget a request, where it waits: its keys may belong to another range by now."""
        return getattr(call, "taken_by", self._first).cancel(call)

    @property
    def failed(self) -> Error | None:
        """Return the error that every request gets once the node has stopped, or ``None``."""
        return self._first.failed

    @property
    def is_used_up(self) -> bool:
        """Return whether requests of clients have to wait for the next turn."""
        return self._is_used_up()

    def _is_any_used_up(self) -> bool:
        return self._has_read_its_share or self._first.is_used_up()

    def on_room(self, act: Callable[[], None]) -> None:
        """Have ``act`` called with each turn, which has room for reads again."""
        self._on_room = act
        self._set_on_room()

    def _set_on_room(self) -> None:
        if self._on_room is not None:
            self._first.on_room, self._first.reads.only_commits = self._on_room, False

    # --- locks, claims and leases of clients

    @property
    def lease_sequence(self) -> int:
        """Return the sum of the sequence numbers of the leases here.

        It rises with each new lease. Something in memory for clients may be gone then.
        """
        return sum([replica.lease.sequence for replica in self._replicas])

    def holds_for(self, client: bytes) -> bool:
        """Return whether a client, or its transactions, hold something."""
        return any(replica.holds_for(client) for replica in self._replicas)

    def clients_that_hold(self) -> set[bytes]:
        """Return the clients that hold something in the stored state, connected or not."""
        return set[bytes]().union(*(replica.clients_that_hold() for replica in self._replicas))

    def on_lease(self, act: Callable[[], None]) -> None:
        """Have ``act`` called when this node has begun to serve a range under a new lease."""
        self._on_lease = act
        for replica in self._replicas:
            replica.memory.on_begun = act

    def release_client(self, client: bytes) -> None:
        """Release everything that is held for the transactions of a client that has gone."""
        for replica in self._replicas:
            replica.release_client(client)

    def sizes(self) -> dict[str, int]:
        """Return how much is kept in memory for clients, by name."""
        of_node = {"queue waits": len(self.claims)}
        return _summed([of_node, *(replica.sizes() for replica in self._replicas)])

    # --- a turn

    def _evaluate(self) -> None:
        self._has_read_its_share = False
        self._turns.evaluate()

    def refuse(self, refusal: RefusedCalls | None) -> None:
        """Refuse some requests from now on; ``None``: none."""
        if refusal is None and self._refusal is None:
            return
        self._refusal = refusal
        for replica in self._replicas:
            if replica.admission.refusal is not refusal:
                replica.refuse(refusal)

    def start_anew(self) -> None:
        """Drop all memory kept for clients, as after a change of leader, and serve again."""
        for replica in self._replicas:
            replica.stop_serving()
            if replica.group.is_leader:
                replica.wake_up()

    def fail_all(self, error: Error) -> None:
        """Answer every waiting or later request with ``error``, because the node stops."""
        self.claims.refuse_all(error)
        for replica in self._replicas:
            replica.fail_all(error)


def _span(descriptor: RangeDescriptor) -> Span | None:
    """Return the span of the keys of a range; ``None``: it contains none."""
    start, end = descriptor.start, descriptor.end
    return (start, end) if end is None or start < end else None


def _summed(sizes: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in sizes:
        total.update(each)
    return dict(total)
