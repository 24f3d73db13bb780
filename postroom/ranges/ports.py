"""The ports of a replica: the parts of the program that it asks or tells, and does not know.

::

    node ◀── Host ── replica ──┬── Companion ──▶ what goes along with its proposals
                               └── MemoryKeeper ─────▶ what is kept in memory along with its lease

A range does not know messaging. Messaging takes part in each proposal as its companion, and keeps
claims and queues in memory as its keeper. Its requests have their evaluators in the
:class:`Registry` of the range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from postroom.errors import Error
from postroom.kv.engine import BlockDamaged, Reader, ValueReader, WriteSet
from postroom.ranges.calls import Call, LeasedWrites
from postroom.ranges.contract import Request
from postroom.ranges.evaluation import Evaluation, View

if TYPE_CHECKING:
    from postroom.raft.group import RaftGroup
    from postroom.ranges.bounds import Bounds
    from postroom.ranges.descriptor import RangeDescriptor


class ServiceWakeUp(Protocol):
    """A wake-up, for which a service of the range waits."""

    def set(self, *, urgent: bool = False) -> None:
        """Set the wake-up: there may be something to do, and perhaps a client waits for it."""

    async def wait(self, timeout_seconds: float = math.inf) -> None:
        """Wait until it is set, or for a time, and reset it."""


class Host(Protocol):
    """The node, as its replicas see it.

    Attributes:
        lease_seconds: the length of a lease, for which another node has to wait.
        values_bytes: the size of a replica's cache of values.
    """

    lease_seconds: float
    values_bytes: int

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def may_rest(self) -> bool:
        """Return whether a replica that is alone may only read, and write nothing yet."""

    def on_serving(self, serves: bool) -> None:
        """Hear that the replica has begun to serve under a new lease, or will not serve again."""

    def hear_clocks(self) -> bool:
        """Ask the other nodes for their clocks; return whether there are any."""

    def on_late_leases(self) -> None:
        """Hear that the replica cannot hold its lease: the disk is too slow."""

    def wake(self, *, urgent: bool) -> None:
        """Take a turn, now or within a moment."""

    def on_damage(self, error: BlockDamaged) -> bool:
        """Note that data is unreadable; return whether another node is to serve instead."""


class SeenRange(Protocol):
    """A range, as the onlookers at its requests see it.

    Attributes:
        bounds: its bounds.
        group: the member of its consensus group.
    """

    bounds: Bounds
    group: RaftGroup


Onlooker: TypeAlias = Callable[[SeenRange, Call], Call]
"""A function that sees a request at a range first; it returns the call, or one in its place."""


class Rider(Protocol):
    """The addition to any proposal that is made, whatever its requests are.

    Attributes:
        is_wanted: whether there may be something to add. A proposal whose requests have left notes
            is looked at in any case.
    """

    is_wanted: bool

    def has_to_fire(self, ctx: Evaluation) -> bool:
        """Return whether ``fire`` has something to do."""

    def fire(self, ctx: Evaluation) -> None:
        """Add writes to a proposal. A failure leaves no trace in it."""


class Companion(Protocol):
    """The part of a proposal that is not the requests' own.

    Attributes:
        rider: the addition to any proposal that is made.
    """

    rider: Rider

    @property
    def is_dividing(self) -> bool:
        """Return whether it sums up each proposal, also one without a tally and notes."""

    def deliver_sent(self, ctx: Evaluation) -> Iterator[None] | None:
        """Deliver the messages that the requests have sent.

        Returns:
            A generator that goes on over turns, if a turn has no room for all; or ``None``.
        """

    def execute_deferred(self, ctx: Evaluation) -> Iterator[None] | None:
        """Carry out the updates that the requests have deferred; returns as ``deliver_sent``."""

    def sum_up(self, ctx: Evaluation) -> Iterator[None] | None:
        """Stage the records that sum up the tally and the notes of a proposal.

        Return as ``deliver_sent`` does.
        """

    def hear(self, written: WriteSet) -> None:
        """Hear what is applied, before any call is answered. Calls stand in line."""


class ChangeRecorder(Protocol):
    """The part of the program that keeps what commands change, on every replica.

    Attributes:
        is_on: whether it keeps anything now.
    """

    is_on: bool

    def record(self, command: LeasedWrites, timestamp: int, staged: WriteSet) -> None:
        """Stage what is kept of a command that is applied.

        ``timestamp`` is one that no commit up to the command is above.
        """


class SpanningTransactions(Protocol):
    """The part of the program that commits transactions over several ranges."""

    def takes(self, call: Call) -> bool:
        """Take a call if it commits in several ranges; else return false."""

    def is_committing(self) -> bool:
        """Return whether a commit is under way that is not decided."""

    def begin_lease(self, stored: Reader) -> None:
        """Begin afresh from what is stored, under a new lease."""

    def end_lease(self) -> None:
        """End all runs of commits: this replica serves no longer."""


class MemoryKeeper(Protocol):
    """The owner of what a leaseholder keeps in memory beside the range's own locks."""

    def begin_lease(self, stored: Reader) -> None:
        """Begin afresh from what is stored, under a new lease."""

    def end_lease(self) -> None:
        """Forget all that is kept for clients: this replica serves no longer."""

    def release(self, transaction_id: bytes) -> list[object]:
        """Free what a transaction holds, and return the tokens that may be free."""

    def vanished(self, transaction_id: bytes, why: str) -> None:
        """Hear that a transaction ended without a word, before it is released."""

    def client_gone(self, client: bytes) -> None:
        """Hear that a client (the first bytes of its transactions' ids) has gone."""

    def holds_for(self, client: bytes) -> bool:
        """Return whether something else is held for a client than by its transactions."""

    def clients_that_hold(self) -> Iterable[bytes]:
        """Return the clients that hold something by what is stored."""

    def given_up(self, request: object) -> None:
        """Hear that a request which had to wait is waited for no more."""


class Divisible(Protocol):
    """The part of a range's metadata that a split divides: it goes with user keys, or is refused.

    ``prepared`` is called on every replica, and with each change. The rest happens on the
    leaseholder.
    """

    def prepared(self, key: bytes | None) -> None:
        """Hear at which key a split is prepared; ``None``: none is."""

    def check(self, ctx: Evaluation) -> None:
        """Check that everything can be divided.

        Raises:
            Invalid: something cannot. The error names it.
        """

    def divide_some(self, ctx: Evaluation) -> bool:
        """Look for a part of what goes with its key; return whether there is more to look for.

        While no split is prepared: delete a part of what an earlier one has left.
        """

    def has_rest(self, stored: ValueReader) -> bool:
        """Return whether an earlier split has left something to delete."""

    def give_up(self, ctx: Evaluation) -> None:
        """Stage the end of what was done for a split that is cancelled."""

    def must_wait(self, ctx: Evaluation, key: bytes) -> bool:
        """Return whether something is due for keys from ``key`` on, which would be overtaken."""

    def halve(self, ctx: Evaluation, right: RangeDescriptor) -> bytes:
        """Stage what goes to the right half; return the sums with which that begins, packed.

        Raises:
            Unavailable: not all of it is found yet, or it is too much for a proposal.
        """

    def halved(self) -> None:
        """Hear that the split is applied, and the bounds are the new ones."""


ReadEvaluator: TypeAlias = Callable[[View, Any], Any]
WriteEvaluator: TypeAlias = Callable[[Evaluation, Any], Any]
CommittedEvaluator: TypeAlias = Callable[[Evaluation, Any, Any], Any]

CHECKS_LONG: Final = "the check of its reads takes long"
ALONE: Final = "it makes a proposal of its own"
"""The token that a command yields to be evaluated alone. Then it finds the token in ``scratch``."""


class ChecksFirst(NamedTuple):
    """A command whose check may take long, and is then made beside the proposals.

    Attributes:
        parts: checks the reads of a request, in parts.
        evaluate: evaluates the request once it is checked.
        conflict: makes the error for a key that has changed.
    """

    parts: Callable[[Any, Any], Generator[object, None, None]]
    evaluate: WriteEvaluator
    conflict: Callable[[bytes], Error]


@dataclass(slots=True)
class Registry:
    """The evaluators of one replica.

    A range knows its own requests (:mod:`postroom.ranges.evaluators`). Other packages add theirs
    when a node is put together, so that a range need not know what a message is. Each replica has
    its own registry, because evaluators may keep state in the leaseholder's memory (locks,
    cursors).

    Attributes:
        reads: the evaluators of reads, which may raise ``Blocked`` or ``MustWait``.
        commands: the evaluators of requests that come by themselves.
        writes: the evaluators of requests that come in a transaction.
        committed: the evaluators of prepared writes that have committed, where they differ. They
            take the answer of the trial too, work at a fresh timestamp, and refuse nothing.
        on_written: called with what each proposal has written, once it is applied.
        sizes: the functions that count what is kept in memory for clients, by name. All counts
            return to zero.
        observers: called with what is applied to a record, on every replica, by engine key.
        triggers: called with what an entry of the log applies to a record, and with the write set
            in which it does, after the observers. Such an entry has an observed record, too.
            Snapshots do not call them.
        recorder: keeps what commands change, if it is on.
        divisible: the parts of the metadata that a split divides.
        replaced_at: the timestamp at which everything stored was replaced; 0: never. Reads before
            it prove nothing.
        image_at: the timestamp of the image that it was replaced by; 0: it never was. An image has
            no COMMIT records.
        is_whole: whether what is stored is whole, and not being replaced step by step.
        refusal: makes the error for every caller while the range is closed (:meth:`close`).
    """

    reads: dict[type[Request], ReadEvaluator] = field(default_factory=dict)
    commands: dict[type[Request], WriteEvaluator] = field(default_factory=dict)
    writes: dict[type[Request], WriteEvaluator] = field(default_factory=dict)
    committed: dict[type[Request], CommittedEvaluator] = field(default_factory=dict)
    on_written: list[Callable[[WriteSet], None]] = field(default_factory=list)
    sizes: dict[str, Callable[[], int]] = field(default_factory=dict)
    observers: dict[bytes, Callable[[bytes | None], None]] = field(default_factory=dict)
    triggers: dict[bytes, Callable[[bytes | None, WriteSet], None]] = field(default_factory=dict)
    recorder: ChangeRecorder | None = None
    divisible: list[Divisible] = field(default_factory=list)
    replaced_at: int = 0
    image_at: int = 0
    is_whole: bool = True
    refusal: Callable[[], Error] | None = None
    _withheld: list[tuple[dict[type, Any], dict[type, Any]]] = field(default_factory=list)

    @property
    def is_recorded(self) -> bool:
        """Return whether changes are kept, which a split would end."""
        return self.recorder is not None and self.recorder.is_on

    def close(self, refusal: Callable[[], Error]) -> None:
        """Refuse all requests until :meth:`open`, except those that are served in a restore.

        Calls that wait go on waiting.
        """
        if self.refusal is not None:
            return
        self.refusal = refusal

        def refuse(_: Any, __: Any) -> Any:
            raise refusal()

        for table in (self.reads, self.commands, self.writes):
            known = dict(table)
            self._withheld.append((table, known))
            table.update({kind: refuse for kind in known if not kind.is_served_in_restore})

    def open(self) -> None:
        """Serve all requests again."""
        self.refusal = None
        while self._withheld:
            table, known = self._withheld.pop()
            table.update(known)
