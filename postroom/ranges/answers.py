"""The last stage of a replica: callers are told, and those that waited go on.

::

    applied ─▶ actions ─▶ memory hears ─▶ each call: its locks are free ─▶ answered ─▶ next in line
                                                       └─ its messages are on their way ─▶ held
    failed ──▶ each call: another node serves, or the outcome is unknown

An answer leaves only after the proposal that it speaks of is applied and durable. This holds for
errors, too: one may tell of a write that another request of the same proposal made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from postroom.errors import CommitUnknown
from postroom.kv.engine import BlockDamaged, WriteSet
from postroom.raft.interface import NodeId
from postroom.raft.proposals import ProposalOutcome
from postroom.ranges.calls import Call, NotLeaseholder, Proposal, Result
from postroom.ranges.commit_waits import CommitWaits
from postroom.ranges.evaluation import MustWait
from postroom.ranges.feed import ChangeFeed
from postroom.ranges.memory import LeaseMemory
from postroom.ranges.ports import Companion, Host
from postroom.ranges.requests import CommitTransaction
from postroom.ranges.transactions.intents import MeetsIntent


class Answering:
    """The answers of one replica; see the module.

    Args:
        node_id: the id of this node.
        leader: a function that returns the leader, as far as this node knows.
        host: the node, which may have damaged data.
        memory: the memory, with what transactions hold.
        commit_waits: the commits that wait for locks.
        feed: the change feed.

    Attributes:
        companion: the part of the program that goes along with the proposals.
    """

    companion: Companion

    def __init__(
        self,
        node_id: int,
        leader: Callable[[], NodeId | None],
        host: Host,
        memory: LeaseMemory,
        commit_waits: CommitWaits,
        feed: ChangeFeed,
    ) -> None:
        self._node_id = node_id
        self._leader = leader
        self._host = host
        self._memory = memory
        self._commit_waits = commit_waits
        self._lines = memory.waiting.lines
        self._clients = memory.holders.clients
        self._feed = feed
        self._departed: dict[bytes, list[bytes]] = {}

    def departs(self, transaction_id: bytes, position: bytes) -> None:
        """Have a commit that is being told answered when the entry at a position has arrived."""
        self._departed.setdefault(transaction_id, []).append(position)

    def tell(
        self,
        results: list[Result],
        after: list[Callable[[], None]],
        written: WriteSet | None = None,
    ) -> None:
        """Answer the calls of a proposal that is applied, or that writes nothing."""
        self._memory.act_and_wake(after)
        intents = self._memory.intents
        if intents.freed:
            intents.go_on()
        if written and self._lines:
            self._commit_waits.hear(written)
            self._feed.look_again()
            self.companion.hear(written)
        waiting, lines, clients = self._commit_waits.calls, self._lines, self._clients
        departed, self._departed = self._departed, {}
        for call, answer, failure in results:
            error = failure
            if failure is not None:
                if self._waits(call, failure):
                    continue
                error = self.elsewhere_if_damaged(failure)
            is_commit = type(call.request) is CommitTransaction
            if is_commit and (lines or clients):
                self._memory.release_locks(call.request.transaction_id)
            positions = departed.pop(_transaction_of(call), ()) if departed and not error else ()
            if positions:
                call.complete_after(positions, answer, self._memory.held)
            else:
                call.complete(answer, error)
            if is_commit and waiting:
                self._commit_waits.answered(call)

    def _waits(self, call: Call, error: BaseException) -> bool:
        """Let a call wait that must, and return whether it does."""
        if type(error) is MustWait:
            self._commit_waits.park(call)
        elif type(error) is MeetsIntent:
            self._memory.intents.park(call, error)
        else:
            return False
        return True

    def fail(self, proposal: Proposal, outcome: ProposalOutcome) -> None:
        """Answer the calls of a proposal that has no effect, or whose outcome is unknown."""
        unknown = outcome is ProposalOutcome.UNKNOWN
        for call, _, error in proposal.results:
            if error is not None or not unknown:
                call.complete(None, self.not_leaseholder())
            else:
                call.complete(None, CommitUnknown(
                    "the write was under way when its node lost the lead, or stopped; it may or "
                    "may not be there: "
                    "commit again with the same transaction id, or read what it wrote"
                ))  # fmt: skip

    def refuse(self, calls: Sequence[Call]) -> None:
        """Tell ``calls`` that another node serves."""
        error = self.not_leaseholder()
        for call in calls:
            call.complete(None, error)

    def elsewhere_if_damaged(self, error: BaseException) -> BaseException:
        """Return the error for a caller: if data is damaged here, another node may have it."""
        if isinstance(error, BlockDamaged) and self._host.on_damage(error):
            return self.not_leaseholder()
        return error

    def not_leaseholder(self) -> NotLeaseholder:
        """Return the error that says that another node serves, or none does."""
        leader = self._leader()
        return NotLeaseholder(None if leader == self._node_id else leader)


def _transaction_of(call: Call) -> bytes:
    """Return the transaction that a request commits or ends; empty: it does neither."""
    return getattr(call.request, "transaction_id", b"")
