"""The answers of clients, compared with what the store has at the end.

The history is a :class:`tests.sim.tasks.Witness`: it sees requests and answers, and knows nothing
of the workloads. From them follow, for every transaction and every read:

* a commit that was acknowledged is there, whole: its record, values, messages and reaped messages;
* one that was refused left no record; of one whose outcome is unknown there is all or nothing;
* its timestamp is above every timestamp that any client had been told before it was sent, across
  restarts with the clock set back too;
* no two commits have one timestamp;
* a change feed tells every version, in order;
* a read returned what the versions say for its timestamp, whenever it was made;
* inboxes were found to hold just what they held (:mod:`.mail_history`).

Records that garbage collection may have removed by now are not looked for.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from postroom.errors import CommitUnknown, Unavailable
from postroom.kv import keys, versions
from postroom.messaging.requests import (
    BuryMessages,
    CancelScheduled,
    CheckInbox,
    EnqueueMessage,
    ListInboxes,
    Peek,
    PostponeMessages,
    ReapMessages,
    ReapQueue,
)
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.requests import (
    Committed,
    CommittedChanges,
    CommitTransaction,
    Get,
    GetForUpdate,
    GetMany,
    Now,
    Protect,
    Put,
    ReverseScan,
    Scan,
    ScanChanges,
)
from tests.sim.checkers import Content, require
from tests.sim.mail_history import MailHistory

READS_MAX = 3000
"""The reads that are remembered: one run need not look at everything."""


class Outcome(enum.Enum):
    """The knowledge of a client about its commit."""

    UNKNOWN = enum.auto()
    COMMITTED = enum.auto()
    REFUSED = enum.auto()


@dataclass
class Attempt:
    """A transaction that a client tried to commit, once or several times."""

    request: CommitTransaction
    above: int
    outcome: Outcome = Outcome.UNKNOWN
    timestamp: int = 0
    tries: int = 1


@dataclass
class History:
    """The history of what clients asked and were told.

    Attributes:
        newest: the newest timestamp that a client was told.
        settled: the newest one of a commit or a read. A clock is ahead of it: what was evaluated
            before the clock was read may still be on its way to the disk.
    """

    attempts: dict[bytes, Attempt] = field(default_factory=dict)
    reads: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)
    scans: list[tuple[int, bytes, bytes | None, dict[bytes, bytes]]] = field(default_factory=list)
    changes: list[tuple[ScanChanges, CommittedChanges]] = field(default_factory=list)
    mail: MailHistory = field(default_factory=MailHistory)
    newest: int = 0
    settled: int = 0
    _owners: dict[int, bytes] = field(default_factory=dict)

    # --- observations

    def sent(self, request: Any) -> None:
        """Note that a client sends ``request``."""
        if type(request) is CommitTransaction:
            known = self.attempts.get(request.transaction_id)
            if known is None:
                self.attempts[request.transaction_id] = Attempt(request, self.newest)
            else:
                known.tries += 1
        elif type(request) is ReapQueue:
            self.mail.sent(request, self._settled_for(request.key))

    def handed_out(self, timestamp: int) -> None:
        """Note that a client is told a timestamp."""
        self.newest = max(self.newest, timestamp)

    def settle(self, timestamp: int) -> None:
        """Note that a client is told what there is at a timestamp."""
        self.handed_out(timestamp)
        self.settled = max(self.settled, timestamp)

    def answered(self, request: Any, result: Any, error: BaseException | None) -> None:
        """Note that a client gets an answer."""
        if type(request) is CommitTransaction:
            self._commit_answered(self.attempts[request.transaction_id], result, error)
        elif error is None:
            self._read_answered(request, result)

    def _commit_answered(
        self, attempt: Attempt, result: Committed | None, error: BaseException | None
    ) -> None:
        told = attempt.request.transaction_id.hex()
        if result is not None:
            require(attempt.outcome is not Outcome.REFUSED, f"{told} was refused, then committed")
            same = attempt.timestamp in (0, result.timestamp)
            require(same, f"{told} is told two timestamps")
            attempt.outcome, attempt.timestamp = Outcome.COMMITTED, result.timestamp
            self._check_moment(attempt)
            self._settle_commit(attempt)
        elif isinstance(error, CommitUnknown):
            pass
        elif isinstance(error, Unavailable) and attempt.tries > 1:
            pass  # nothing came of this try; of the earlier one nobody knows
        else:
            require(attempt.outcome is not Outcome.COMMITTED, f"{told} committed, then refused")
            attempt.outcome = Outcome.REFUSED

    def _check_moment(self, attempt: Attempt) -> None:
        """Check the timestamp of a commit: one clock gives all of them."""
        id_, timestamp = attempt.request.transaction_id, attempt.timestamp
        require(timestamp > attempt.above, f"{id_.hex()} committed in the past")
        self._check_alone(timestamp, id_)

    def _check_alone(self, timestamp: int, id_: bytes) -> None:
        owner = self._owners.setdefault(timestamp, id_)
        require(owner == id_, f"{id_.hex()} and {owner.hex()} have one timestamp")

    def _settle_commit(self, attempt: Attempt) -> None:
        self.settle(attempt.timestamp)

    def _settled_for(self, key: bytes) -> int:
        """Return a timestamp at which somebody was told what there is in an inbox."""
        del key
        return self.settled

    def _read_answered(self, request: Any, result: Any) -> None:
        match request:
            case Get() | GetForUpdate():
                self._read(result.timestamp, request.key, result.value)
            case GetMany():
                # There may be fewer values than keys: the others are asked for again.
                for key, value in zip(request.keys, result.values, strict=False):
                    self._read(result.timestamp, key, value)
            case Scan() | ReverseScan():
                self._scanned(request, result)
            case ScanChanges():
                if len(self.changes) < READS_MAX // 10:
                    self.changes.append((request, result))
            case Protect() | Now():
                self.handed_out(result)
            case Peek():
                self.settle(result.timestamp)
                self.mail.answered(request, result)
            case ReapQueue() | ListInboxes():
                self.mail.answered(request, result)

    def _read(self, timestamp: int, key: bytes, value: bytes | None) -> None:
        self.settle(timestamp)
        if len(self.reads) < READS_MAX:
            self.reads.append((timestamp, key, value))

    def _scanned(self, request: Scan | ReverseScan, result: Any) -> None:
        self.settle(result.timestamp)
        start, end = request.start, request.end
        if result.resume is not None and isinstance(request, Scan):
            end = result.resume
        elif result.resume is not None:
            start = result.resume
        ordered = [key for key, _ in result.pairs]
        reverse = isinstance(request, ReverseScan)
        require(ordered == sorted(set(ordered), reverse=reverse), "a scan is not in order")
        if len(self.scans) < READS_MAX // 10:
            self.scans.append((result.timestamp, start, end, dict(result.pairs)))

    # --- the verdict

    def check(self, content: Content) -> None:
        """Raise ``Broken`` if the store tells another story.

        The workload knows what became of messages that a client tried to cancel.
        """
        self._cancelled = {
            id_[16:36]
            for attempt in self.attempts.values()
            for write in attempt.request.writes
            if isinstance(write, CancelScheduled)
            for id_ in write.ids
        }
        for id_, attempt in self.attempts.items():
            self._check_attempt(content, id_, attempt)
        for timestamp, key, value in self.reads:
            self._check_read(content, timestamp, key, value)
        for timestamp, start, end, found in self.scans:
            if timestamp >= content.collected:
                self._check_scan(content, timestamp, start, end, found)
        for request, result in self.changes:
            if request.after >= content.collected:
                self._check_changes(content, request, result)
        self.mail.check(content)

    def _check_attempt(self, content: Content, id_: bytes, attempt: Attempt) -> None:
        record = content.records.get(id_)
        if attempt.outcome is Outcome.REFUSED:
            require(record is None, f"{id_.hex()} was refused, but is there")
        only_reads = all(type(write) is CheckInbox for write in attempt.request.writes)
        if only_reads:
            require(record is None, f"{id_.hex()} wrote nothing, but has a COMMIT record")
        elif attempt.outcome is Outcome.COMMITTED and attempt.timestamp > content.collected:
            require(record is not None, f"{id_.hex()} was acknowledged, and is lost")
        if record is not None:
            timestamp = int.from_bytes(record[:8], "big")
            require(
                timestamp == attempt.timestamp or attempt.outcome is Outcome.UNKNOWN,
                f"{id_.hex()} committed at {timestamp}, told was {attempt.timestamp}",
            )
            self._check_alone(timestamp, id_)
            self._check_effects(content, attempt.request, record[:8])

    def _check_effects(self, content: Content, request: CommitTransaction, stamp: bytes) -> None:
        """Check that all that the transaction did is there, unless it may be collected."""
        if int.from_bytes(stamp, "big") <= content.collected:
            return
        name = request.transaction_id.hex()
        last = {write.key: write for write in request.writes if isinstance(write, Put)}
        for key, put in last.items():
            kind = versions.INTEGER_KIND if put.integer else versions.VALUE_KIND
            version = kind + stamp + put.value
            require(version in content.versions.get(key, ()), f"{name} did not write {key!r}")
        ordinal = 0
        for write in request.writes:
            if type(write).__name__.startswith("Enqueue"):
                ordinal += 1
                if isinstance(write, EnqueueMessage):
                    there = any(
                        id_ in self._cancelled or _has_message(content, write.key, id_)
                        for id_ in self._message_ids(content, stamp, ordinal)
                    )
                    require(there, f"{name} did not send to {write.key!r}")
            elif isinstance(write, ReapMessages):
                gone = set(write.ids)
                inbox = content.inboxes.get(write.key, {})
                taken = {id_ for when, id_, _ in content.reaped[write.key] if when == stamp}
                taken -= _tried(request, write.key)
                require(taken == gone and not gone & inbox.keys(), f"{name} did not reap")

    def _message_ids(self, content: Content, stamp: bytes, ordinal: int) -> Iterable[bytes]:
        """Return the ids that a message of a commit may have."""
        del content
        return (stamp + keys.u64(ROOT_ID) + ordinal.to_bytes(4, "big"),)

    def _check_read(
        self, content: Content, timestamp: int, key: bytes, value: bytes | None
    ) -> None:
        if timestamp < content.collected:
            return
        stored = _value_at(content, key, timestamp)
        require(
            stored == value,
            f"{key!r} was read as {value!r} at {timestamp}, but it was {stored!r} then",
        )

    def _check_scan(
        self,
        content: Content,
        timestamp: int,
        start: bytes,
        end: bytes | None,
        found: dict[bytes, bytes],
    ) -> None:
        then = {
            key: value
            for key in content.versions
            if key >= start
            and (end is None or key < end)
            and (value := _value_at(content, key, timestamp)) is not None
        }
        require(then == found, f"a scan of [{start!r}, {end!r}) at {timestamp} was not what was")

    def _check_changes(
        self, content: Content, request: ScanChanges, told: CommittedChanges
    ) -> None:
        """Check that a part of a change feed is exactly the versions of its time."""
        end = request.end
        found = [
            (timestamp, key, versions.payload(version))
            for key, stored in content.versions.items()
            if key >= request.start and (end is None or key < end)
            for version in stored
            if request.after < (timestamp := int.from_bytes(version[1:9], "big")) <= told.until
        ]
        seen = [(change.timestamp, change.key, change.value) for change in told.changes]
        require(seen == sorted(seen, key=lambda change: change[:2]), "changes are not in order")
        by_place = sorted(found, key=lambda change: change[:2])
        require(seen == by_place, f"the changes of {request} were {by_place}, not {seen}")


def _value_at(content: Content, key: bytes, timestamp: int) -> bytes | None:
    stamp = timestamp.to_bytes(8, "big")
    for version in content.versions.get(key, ()):
        if version[1:9] <= stamp:
            return versions.payload(version)
    return None


def _has_message(content: Content, key: bytes, id_: bytes) -> bool:
    return (
        id_ in content.messages
        or id_ in content.inboxes.get(key, ())
        or id_ in content.dead_messages
        or any(id_ == reaped for _, reaped, _ in content.reaped.get(key, ()))
    )


def _tried(request: CommitTransaction, key: bytes) -> set[bytes]:
    """Return the messages of an inbox that a transaction has postponed or buried."""
    return {
        id_
        for write in request.writes
        if isinstance(write, PostponeMessages | BuryMessages) and write.key == key
        for id_, _ in write.tries
    }
