"""The lease and a replica: how it begins to serve, how it ends, and what becomes of its calls.

:mod:`.lease` says when the lease may be asked for, and how it is given back. This module does for
the whole replica what follows from that: memory begins afresh or ends, and calls that wait go on or
are sent elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from postroom.errors import Error
from postroom.limits import LATE_LEASES_MAX
from postroom.ranges import lease as leases
from postroom.ranges.admission import taken
from postroom.ranges.calls import Call, LeasedWrites, Proposal
from postroom.ranges.descriptor import decode_descriptor
from postroom.ranges.lease import LeaseAcquisition
from postroom.ranges.requests import CommitTransaction

if TYPE_CHECKING:
    from postroom.raft.group import RaftGroup
    from postroom.ranges.assembly import AssembledReplica


class Serving:
    """The beginnings and ends of serving of one replica; see the module.

    Args:
        replica: the replica, whose components need not be there yet.
        lease_key: the engine key of its lease.

    Attributes:
        acquisition: the acquisition of the lease.
    """

    def __init__(self, replica: AssembledReplica, lease_key: bytes) -> None:
        self._replica = replica
        self._lease_key = lease_key
        self.acquisition = LeaseAcquisition(replica.lease_holder, replica.host, self)

    @property
    def group(self) -> RaftGroup:
        """Return the member of the consensus group."""
        return self._replica.group

    # --- its beginning

    def begin_with_fresh_memory(self) -> None:
        """Serve under a new lease: memory starts afresh from what is stored."""
        replica = self._replica
        replica.reads.last_commit = replica.lease_holder.begin()
        self.acquisition.wanted = False
        replica.memory.begin()
        self.serve_again()

    def begin_anew(self) -> None:
        """Begin memory anew under this lease, if any: everything stored was replaced.

        Without a lease, memory begins with the next one.
        """
        replica = self._replica
        if replica.lease_holder.has_lease:
            replica.memory.begin_anew()

    def granted(self, until: float) -> None:
        """Serve until a time, as the group has agreed; hand over if such times are mostly over."""
        holder = self._replica.lease_holder
        holder.granted(until)
        if holder.late >= LATE_LEASES_MAX and len(self.group.members) > 1:
            holder.late = 0
            self._replica.host.on_late_leases()

    def serve_again(self) -> None:
        """Let those have their turn that have waited for the lease."""
        replica = self._replica
        replica.submit_again(taken(replica.reads.without_lease))

    def rest_or_ask(self) -> None:
        """Read under the lease of an earlier life, or ask for a lease if there is more to do."""
        replica = self._replica
        if replica.clients or replica.upkeep or not self.acquisition.rest():
            self.acquisition.ask()
        else:
            replica.reads.last_commit = replica.clock.read()

    def wake_up(self) -> None:
        """End the rest: there is something to do."""
        replica = self._replica
        replica.reads.only_commits = False
        self.acquisition.wanted = True
        replica.host.wake(urgent=False)

    def rouse(self) -> None:
        """End the rest, if it rests: a service has something to do."""
        if self._replica.lease_holder.resting:
            self.wake_up()

    def propose_lease(
        self, lease: leases.RangeLease, after: Callable[[], None], until: float
    ) -> None:
        """Have the group agree on ``lease``, and call ``after`` when it is applied."""
        replica = self._replica
        sequence = replica.lease_holder.lease.sequence
        command = LeasedWrites(sequence, {self._lease_key: leases.encode(lease)})
        replica.start(Proposal(command, [], [after], replica.reads.last_commit, until))

    # --- news of the group

    def on_leadership(self, leads: bool, term: int) -> None:
        """Hear that this member has begun or ceased to lead.

        A new leader takes the lease as soon as it may: there may be messages to deliver.
        """
        del term
        replica = self._replica
        replica.reads.only_commits = False
        self.acquisition.on_leadership(leads)
        if replica.has_work():
            replica.host.wake(urgent=True)

    def noop_applied(self) -> None:
        """Have a turn for what waits for the lease: an entry of the group's own is applied."""
        replica = self._replica
        if replica.has_work():
            replica.host.wake(urgent=True)

    def observe_lease(self, stored: bytes | None) -> None:
        """Hear that a lease is applied. It may be another node's, or this one's next."""
        if not self._replica.lease_holder.applied(stored):
            self.stop_serving()

    def observe_descriptor(self, stored: bytes | None) -> None:
        """Take the bounds that are applied. Calls that wait for keys outside of them are told.

        Calls that are evaluated, or evaluated again, find out by themselves.
        """
        replica = self._replica
        replica.bounds.take(decode_descriptor(stored, replica.range_id))
        replica.state.arriving = None
        replica.cache.clear()
        waiting, long = replica.waiting, replica.reads.long
        for call in [call for line in waiting.lines.values() for call in line] + list(long):
            waits = call.token is not None and not waiting.is_looked_at_later(call)
            if waits or call in long:
                wrong = replica.bounds.refusal(call.request)
                if wrong is not None:
                    self._give_up(call, wrong)

    def _give_up(self, call: Call, error: Error) -> None:
        """End a call that waits, without having changed anything."""
        replica = self._replica
        if type(call.request) is CommitTransaction:
            replica.commit_waits.refuse(call, error)
        else:
            replica.reads.cancel(call)
            call.complete(None, error)

    # --- its end

    def hand_over(self, done: Callable[[], None]) -> None:
        """Stop serving, so that a successor can begin at once; see :mod:`.lease`."""
        self._replica.reads.only_commits = False
        self.acquisition.hand_over(done)

    def resume(self) -> None:
        """Serve again, since no successor took over."""
        self._replica.reads.only_commits = False
        self.acquisition.resume()

    def stop_serving(self) -> None:
        """Stop using this lease, and send those that wait elsewhere."""
        replica = self._replica
        met = replica.intents.take_waiting()
        if replica.lease_holder.end():
            replica.host.on_serving(False)
            replica.memory.end()
        reads = replica.reads
        reads.only_commits = False
        waited = dict.fromkeys(
            (*replica.waiting.clear(), *met, *taken(reads.blocked), *self._abandon())
        )
        replica.answers.refuse([call for call in waited if call not in reads.without_lease])

    def _abandon(self) -> list[Call]:
        """Give up what goes over several turns: under another lease it would be something else."""
        replica = self._replica
        reading = taken(replica.reads.long)
        replica.reads.before = 0
        return [*reading, *replica.evaluator.abandon()]

    def refuse_waiting(self) -> None:
        """Send those that wait elsewhere, unless this member is to lead in a moment."""
        if self.group.is_about_to_lead:
            return
        replica = self._replica
        without_lease = replica.reads.without_lease
        waiting = (*taken(replica.clients), *taken(replica.upkeep), *taken(without_lease))
        for call in waiting:  # a commit may have been put in line after the lease had ended
            replica.commit_waits.given_up(call.request)
        replica.answers.refuse(waiting)

    def refuse_commit(self, call: Call, error: Exception) -> None:
        """End a commit that waits for an intent, without having changed anything."""
        replica = self._replica
        if id(call.request) in replica.commit_waits.calls:
            replica.commit_waits.refuse(call, error)
        else:
            call.complete(None, error)

    def fail_all(self, error: Error) -> None:
        """Answer every call that waits, or will come, with ``error``: the node stops."""
        replica = self._replica
        replica.failed = error
        replica.reads.is_stopped, replica.reads.only_commits = True, False
        waited = dict.fromkeys((*replica.waiting.clear(), *replica.intents.take_waiting()))
        reads = replica.reads
        for calls in (replica.clients, replica.upkeep, reads.without_lease, reads.blocked):
            waited |= dict.fromkeys(taken(calls))
        waited |= dict.fromkeys(self._abandon())
        replica.memory.end()
        for call in waited:
            call.complete(None, error)
