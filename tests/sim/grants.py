"""Grants of a leaseholder's memory, watched from outside: locks, messages, timestamps.

None of these make anything correct. No client is ever told something wrong if they fail: it only
waits, or conflicts, or hears that a snapshot is too old. Somebody has to look where they are
granted therefore. An observer stands between a node and its evaluators, and keeps a list of its
own:

* a key is locked by one transaction at a time;
* a message is handed to one transaction at a time, and once;
* ``reap_queue`` hands out the oldest ones that nobody holds, and all that it may, also when it
  hands out nothing;
* protected timestamps can be read, and so can young ones.

It also sees that the services of the leaseholder go on: one that ends of its own accord is missed.

The grants of a transaction end when the node says so, or by the end of its time, whichever clock
that is measured by. They all end at that time, and later if the transaction takes more. With a new
lease all of them begin anew.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from postroom.errors import SnapshotTooOld
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.kv.engine import Reader
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.messaging.inbox_index import read_mail
from postroom.messaging.requests import MESSAGE_ID_BYTES, Peek, ReapQueue
from postroom.ranges.evaluation import MustWait, View
from postroom.ranges.ports import MemoryKeeper
from postroom.ranges.requests import (
    Get,
    GetForUpdate,
    GetMany,
    Lock,
    Protect,
    ReverseScan,
    Scan,
    Unprotect,
)
from postroom.ranges.transactions.one_range import RECORD_SECONDS
from postroom.server.hosted_range import HostedRange
from postroom.server.node import Node
from tests.sim.checkers import Broken, require

_READS_OF_THE_PAST: Final = (Get, GetMany, Scan, ReverseScan, Peek)


class _End(NamedTuple):
    """The end of a transaction's time, by either clock."""

    expires: int = 0
    expires_monotonic: float = 0.0


class _WatchedKeeper:
    """The keeper of a leaseholder's memory, which tells the oracle first."""

    def __init__(self, keeper: MemoryKeeper, grants: Grants) -> None:
        self._keeper = keeper
        self._grants = grants

    def begin_lease(self, stored: Reader) -> None:
        self._grants.begin()
        self._keeper.begin_lease(stored)

    def release(self, transaction_id: bytes) -> list[object]:
        self._grants.release(transaction_id)
        return self._keeper.release(transaction_id)

    def vanished(self, transaction_id: bytes, why: str) -> None:
        self._grants.vanished(transaction_id)
        self._keeper.vanished(transaction_id, why)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keeper, name)


class Grants:
    """A watch of one range on a node, as long as it is there."""

    def __init__(self, node: Node, hosted: HostedRange) -> None:
        self._node, self._services = node, hosted.services
        self._locks: dict[bytes, bytes] = {}
        self._claims: dict[tuple[bytes, bytes], bytes] = {}
        """The transaction ids of those who claim."""
        self._ends: dict[bytes, _End] = {}
        self._protected: Counter[int] = Counter()
        self._broken: Broken | None = None
        memory, registry = hosted.replica.memory, hosted.replica.registry
        memory.keeper = cast("MemoryKeeper", _WatchedKeeper(memory.keeper, self))
        self._either: set[tuple[bytes, bytes]] = set()
        self._chosen_before: dict[int, ReapQueue] = {}
        """Requests whose messages are chosen, and not handed out yet."""
        watched: dict[type, Callable[..., Any]] = {
            GetForUpdate: self._get_for_update,
            Lock: self._lock,
            ReapQueue: self._reap_queue,
            Protect: self._protect,
            Unprotect: self._unprotect,
            **dict.fromkeys(_READS_OF_THE_PAST, self._read_the_past),
        }
        for kind, watch in watched.items():
            registry.reads[kind] = self._between(watch, registry.reads[kind])

    def _between(
        self, watch: Callable[..., Any], evaluate: Callable[..., Any]
    ) -> Callable[[View, Any], Any]:
        @functools.wraps(evaluate)
        def watched(view: View, request: Any) -> Any:
            try:
                return watch(evaluate, view, request)
            except Broken as broken:  # the client would take it for an error of the store
                self._broken = self._broken or broken
                raise

        return watched

    def look(self) -> None:
        """Raise ``Broken`` if something was granted that must not be, or a service has ended."""
        if self._broken is not None:
            raise self._broken
        if self._node.failed is None:
            ended = [
                service.__qualname__
                for service in self._services._running
                if service.cr_frame is None  # it is closed
            ]
            require(not ended, f"of node {self._node.node_id} these services have ended: {ended}")

    def begin(self) -> None:
        """Begin a new lease, under which nothing is granted."""
        self._locks.clear()
        self._claims.clear()
        self._ends.clear()
        self._either.clear()
        self._chosen_before.clear()
        self._protected.clear()

    def vanished(self, transaction_id: bytes) -> None:
        """Note that a transaction vanished: its messages are free when that is written."""
        self._either |= {what for what, by in self._claims.items() if by == transaction_id}

    def release(self, transaction_id: bytes) -> None:
        """Release all that a transaction holds, before others are woken."""
        for held in (self._locks, self._claims):
            for what in [each for each, by in held.items() if by == transaction_id]:
                del held[what]  # type: ignore[attr-defined]
        self._ends.pop(transaction_id, None)

    def _is_over(self, transaction_id: bytes, now: int) -> bool:
        end = self._ends[transaction_id]
        return now >= end.expires or self._node.monotonic() >= end.expires_monotonic

    def _extend(self, request: GetForUpdate | Lock | ReapQueue, now: int) -> None:
        """Note that a transaction has taken something; its one end is never put forward."""
        seconds = min(request.seconds_max, TRANSACTION_SECONDS_MAX)
        known = self._ends.get(request.transaction_id, _End())
        self._ends[request.transaction_id] = _End(
            max(known.expires, now + from_seconds(seconds)),
            max(known.expires_monotonic, self._node.monotonic() + seconds),
        )

    # --- locks

    def _get_for_update(self, evaluate: Any, view: View, request: GetForUpdate) -> Any:
        answer = evaluate(view, request)
        self._granted(request.key, request, view.now)
        return answer

    def _lock(self, evaluate: Any, view: View, request: Lock) -> Any:
        answer = evaluate(view, request)
        for key in request.keys:
            self._granted(key, request, view.now)
        return answer

    def _granted(self, key: bytes, request: GetForUpdate | Lock, now: int) -> None:
        held = self._locks.get(key)
        if held is not None and held != request.transaction_id:
            who = f"{request.transaction_id.hex()}, while {held.hex()} holds it"
            require(self._is_over(held, now), f"the lock of {key!r} is granted to {who}")
        self._locks[key] = request.transaction_id
        self._extend(request, now)

    # --- messages

    def _reap_queue(self, evaluate: Any, view: View, request: ReapQueue) -> Any:
        try:
            answer = evaluate(view, request)
        except MustWait as wait:
            reaped = getattr(wait.token, "reaped", None)
            if reaped is not None:  # they are handed out when that is written down
                self._either |= {(request.key, id_) for id_, _ in reaped.messages}
                self._chosen_before[id(request)] = request
            raise
        prefix = keys.inbox_prefix(request.key)
        there = {
            raw[-MESSAGE_ID_BYTES:]: stored
            for raw, stored in view.iterate(prefix, prefix + b"\xff" * MESSAGE_ID_BYTES)
        }
        ids = [id_ for id_, _ in answer.messages]
        what = f"{request} is handed {[id_.hex() for id_ in ids]}"
        require(ids == sorted(set(ids)), f"{what}: one twice, or not in order")
        for id_, stored in answer.messages:
            require(there.get(id_) == stored, f"{what}: {id_.hex()} is not there")
            held = self._claims.get((request.key, id_))
            require(held != request.transaction_id, f"{what}: {id_.hex()} for the second time")
            in_doubt = (request.key, id_) in self._either
            free = held is None or in_doubt or self._is_over(held, view.now)
            require(free, f"{what}: {held!r} holds {id_.hex()}")
        handed = {id_ for id_, _ in answer.messages}
        last = max(handed) if answer.more and handed else b"\xff" * (MESSAGE_ID_BYTES + 1)
        is_late = self._chosen_before.pop(id(request), None) is not None
        mail = read_mail(view, request.key)
        if mail is not None and mail.held:
            held_up = not is_late and any(id_ > mail.held for id_ in handed)
            require(not held_up, f"{what}: {mail.held.hex()} holds it up")
            last = min(last, mail.held)
        known = self._claims.keys() | self._either
        left_out = [
            id_.hex()
            for id_ in there
            if id_ not in handed and id_ < last and (request.key, id_) not in known
        ]
        require(is_late or not left_out, f"{what}, and nobody holds {left_out}")
        if handed:
            self._extend(request, view.now)
        for id_ in handed:
            self._claims[request.key, id_] = request.transaction_id
        self._either -= {(request.key, id_) for id_ in handed}
        return answer

    # --- timestamps

    def _protect(self, evaluate: Any, view: View, request: Protect) -> Any:
        timestamp = evaluate(view, request)
        self._protected[timestamp] += 1
        return timestamp

    def _unprotect(self, evaluate: Any, view: View, request: Unprotect) -> Any:
        self._protected[request.timestamp] -= 1
        self._protected += Counter()  # without those that nobody protects any more
        return evaluate(view, request)

    def _read_the_past(self, evaluate: Any, view: View, request: Any) -> Any:
        try:
            return evaluate(view, request)
        except SnapshotTooOld as error:
            protected = request.timestamp in self._protected
            require(not protected, f"{request} is protected, and yet: {error}")
            age = view.now - request.timestamp
            old = age >= from_seconds(RECORD_SECONDS)
            require(old, f"{request} is {age / from_seconds(1):g} s old only, and yet: {error}")
            raise
