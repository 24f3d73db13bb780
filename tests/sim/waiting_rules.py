"""The rules for waiting calls and for memory, checked from outside: no call is forgotten.

These hold at every step. Timers are few, whatever waits. Each transaction that holds something
holds a lock or a claim. No call stands in line that has given up, or for what is free. The head
cursors of the outboxes have not passed over anything that is stored. When nothing is under way any
more, all of it has gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec

from postroom.client.database import CoreDatabase
from postroom.errors import CommitUnknown, Retryable, TransactionExpired
from postroom.kv import keys, versions
from postroom.kv.engine import Reader
from postroom.kv.gathering import Gathering, OverlaidReader
from postroom.messaging.claims import Arrival, Claims
from postroom.messaging.inbox_index import HOLDER
from postroom.messaging.outbox import Outbox
from postroom.messaging.queues.claim_requests import ClaimQueue
from postroom.messaging.queues.claiming import Claiming
from postroom.messaging.requests import DeliverDue, ExecuteDue, InboxIndexEntry, ReapQueue
from postroom.ranges.calls import Call
from postroom.ranges.locks import LockTable, Token
from postroom.ranges.memory import Holders
from postroom.ranges.replica import Replica
from postroom.ranges.requests import CommitTransaction, GetForUpdate, ScanChanges
from postroom.ranges.waiting import ChangeToken
from postroom.server.hosted_range import HostedRange
from postroom.server.node import Node
from tests.sim.checkers import Broken, require
from tests.sim.service_rules import SERVICES

TIMERS_MAX: Final = 33 + len(SERVICES)
"""The timers of the services of a range, of a hand-over and of sessions; with leftovers."""
CALLS_MAX: Final = 64
"""The timers of calls to ranges on other nodes, where there are several ranges."""
COUNTED_STEPS: Final = 8
ALWAYS_THERE: Final = frozenset({"timers", "deadlines"})


class StepRules:
    """The rules that hold after each step of a node, and what they know of its ranges.

    Args:
        node: one life of a node.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._steps = 0
        self._watched: dict[HostedRange, _Watched] = {}

    def check(self) -> None:
        """Check what must hold at every moment; count what gathers now and then."""
        self._steps += 1
        if self._steps % COUNTED_STEPS == 0:
            check_sizes(self._node)
        for hosted in self._node.replicas.hosted.values():
            watched = self._watched.get(hosted)
            if watched is None:
                watched = self._watched[hosted] = _Watched(hosted.replica)
            _check_outboxes(hosted.replica, watched)
            if hosted.replica.waiting_for and len(hosted.replica.waiting):
                _check_lines(hosted.replica)


class _Watched:
    """The knowledge about a replica.

    Attributes:
        looked_at: what there was when outboxes were looked at: without a change there is nothing
            new to be seen.
    """

    __slots__ = ("looked_at", "outboxes")

    def __init__(self, replica: Replica) -> None:
        self.outboxes = _outboxes(replica)
        self.looked_at: tuple[object, ...] = ()


async def leave_everything(db: CoreDatabase) -> None:
    """Hold and await one of everything, until killed in the middle of that."""
    while True:
        with suppress(Retryable, CommitUnknown, TransactionExpired):
            async with db.begin() as tx:
                tx.enqueue_message(b"left/inbox", b"left")
            async with db.snapshot():
                holder = db.begin()
                await holder.get_for_update(b"left/key")
                await holder.reap_queue(b"left/inbox", 1)
                await db.begin().get_for_update(b"left/key")  # with a new lease it is free
        await db._sender.sleep(0.05)


def check_sizes(node: Node) -> None:
    """Check that timers are few, and that each holder holds a lock or a claim."""
    sizes = node.sizes()
    held = sizes["locks"] + sizes["claims"] + sizes["queue claims"]
    timers, deadlines = sizes["timers"], sizes["deadlines"]
    number = len(node.replicas.hosted)
    timers_max = TIMERS_MAX * number + CALLS_MAX * (number > 1)
    if timers > timers_max or deadlines > 2 * held + TIMERS_MAX * number:
        raise Broken(f"timers gather: {sizes}")
    for hosted in node.replicas.hosted.values():
        _check_holders(hosted.replica)


def _check_holders(replica: Replica) -> None:
    kept = {each for of_client in _holders(replica).clients.values() for each in of_client}
    holding = _locks(replica)._tokens.keys() | _claims(replica)._holders.keys()
    idle = kept - holding - _claiming(replica)._claiming.keys() - {HOLDER}
    require(not idle, f"these transactions are kept, and hold nothing: {idle}")


def _check_outboxes(replica: Replica, watched: _Watched) -> None:
    """Check that nothing lies below a head cursor, where only the next lease would find it."""
    if replica.proposal is not None:
        return
    outboxes = watched.outboxes
    stored = replica.stored
    unwritten = (
        len(stored._gathered) + len(stored._under_way) if isinstance(stored, Gathering) else 0
    )
    now = (replica.group.applied_index, unwritten, *_heads(outboxes))
    if watched.looked_at == now:
        return
    for outbox in outboxes:
        for line in outbox._lines:
            passed = next(iter(seen(replica).iterate(line.begin, line.head)), None)
            require(passed is None, f"a head of {outbox.pending} has passed over {passed}")
    watched.looked_at = now


def _heads(outboxes: Iterable[Outbox]) -> list[bytes]:
    return [line.head for outbox in outboxes for line in outbox._lines]


def check_lines(node: Node) -> None:
    """Check that no call waits in vain."""
    for hosted in node.replicas.hosted.values():
        _check_lines(hosted.replica)


def _check_lines(replica: Replica) -> None:
    if replica.proposal is not None:
        return  # its locks are not free yet
    for token, line in replica.waiting_for.items():
        for call in line:
            if call.cancelled:
                require(_is_refused_later(replica, call), f"{token} is waited for by nobody")
        first = next(iter(line))
        if replica.waiting.is_looked_at_later(first):
            continue
        if isinstance(token, Arrival):
            require(not _has_free(replica, token.key), f"{token} is waited for, and is there")
        elif isinstance(token, bytes | tuple):
            require(_is_locked(replica, token), f"{token!r} is waited for, and free")
        elif isinstance(token, ChangeToken):
            require(not _has_changed(replica, first.request), f"{token} is watched, and changed")


def _is_refused_later(replica: Replica, call: Call) -> bool:
    """Return whether a withdrawn call keeps its place only until its evaluation: a commit does."""
    return (
        type(call.request) is CommitTransaction
        and replica.waiting.is_looked_at_later(call)
        and (call in replica.clients or call in replica.evaluator.under_evaluation())
    )


def check_rest(node: Node) -> None:
    """Check that nothing is under way any more."""
    sizes = node.sizes()
    for hosted in node.replicas.hosted.values():
        if _holders(hosted.replica).knows(HOLDER):  # the order of inboxes, which stays for a while
            sizes |= {"holders": sizes["holders"] - 1, "inboxes in order": 0}
    left = {name: size for name, size in sizes.items() if size and name not in ALWAYS_THERE}
    require(not left, f"clients have gone, but there is still {left}")


def seen(replica: Replica) -> Reader:
    """Return what the replica reads, without writing what waits in memory first."""
    stored: Reader = replica.stored
    if isinstance(stored, Gathering):
        return OverlaidReader(stored._engine, {**stored._under_way, **stored._gathered})
    return stored


def _has_free(replica: Replica, key: bytes) -> bool:
    """Return whether there is a message in an inbox that nobody has claimed."""
    prefix = keys.inbox_prefix(key)
    stored = seen(replica).get(keys.mail_key(key))
    held = b"" if stored is None else msgspec.msgpack.decode(stored, type=InboxIndexEntry).held
    entries = seen(replica).iterate(prefix, prefix + (held or b"\xff" * 20))
    inbox = _claims(replica)._inboxes.get(key)
    return any(inbox is None or raw[-20:] not in inbox.messages for raw, _ in entries)


def _has_changed(replica: Replica, request: ScanChanges) -> bool:
    """Return whether a watch that waits has not been told of a change.

    Changes above an intent are told once that has ended.
    """
    if replica.intents.by_transaction or replica.intents.going:
        return False
    after = keys.u64(request.after)
    return any(versions.changed_since(seen(replica), request.start, request.end, after))


def _claims(replica: Replica) -> Claims:
    evaluator = _unwrapped(replica.registry.reads[ReapQueue])
    claims: Claims = evaluator.__self__._claims
    return claims


def _outboxes(replica: Replica) -> list[Outbox]:
    evaluators = [
        _unwrapped(replica.registry.commands[request]) for request in (DeliverDue, ExecuteDue)
    ]
    return [each.__self__._outbox for each in evaluators]


def _unwrapped(evaluator: Any) -> Any:
    """Unwrap like ``inspect.unwrap``, without its slow search for circles."""
    while (inside := getattr(evaluator, "__wrapped__", None)) is not None:
        evaluator = inside
    return evaluator


def _is_locked(replica: Replica, token: Token) -> bool:
    """Return whether a transaction has locked a key, or that very span."""
    return _locks(replica).holder(token) is not None


def _locks(replica: Replica) -> LockTable:
    evaluator = _unwrapped(replica.registry.reads[GetForUpdate])
    locks: LockTable = evaluator.__self__._locks
    return locks


def _holders(replica: Replica) -> Holders:
    evaluator = _unwrapped(replica.registry.reads[GetForUpdate])
    holders: Holders = evaluator.__self__._holders
    return holders


def _claiming(replica: Replica) -> Claiming:
    evaluator = _unwrapped(replica.registry.reads[ClaimQueue])
    claiming: Claiming = evaluator.__self__
    return claiming
