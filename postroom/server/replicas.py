"""The replicas of a node, and the one door for requests to them.

::

    drivers, sessions, services ── submit, cancel, release ──▶ Replicas ──▶ the replica of the range
    the node's turn ─────────── evaluate, deadlines, fail ──────▶ └───────▶ all of them

The callers do not ask which replica answers. There is one range yet, whose replica has every key:
the door for requests is that replica's own, and costs nothing. With more ranges, this is where a
request will be sent to the range of its keys.
"""

from __future__ import annotations

from collections.abc import Callable

from postroom.errors import Error
from postroom.ranges.admission import RefusedCalls
from postroom.ranges.calls import Call
from postroom.ranges.replica import Replica
from postroom.ranges.requests import Value


class Replicas:
    """The replicas of one node; see the module.

    Attributes:
        submit: takes a request; ``call.complete`` is called once, perhaps before this returns.
        try_get: returns the newest value of a key, from any thread; ``None``: submit a ``Get``.
        wants_turn: whether ``evaluate`` would have something to do.
        evaluate: takes the turns of replicas: waiting requests become proposals.
        hurries: returns whether a request waits for the result of upkeep.
        next_deadline: returns when a turn has something to do without being woken.
    """

    submit: Callable[[Call], None]
    try_get: Callable[[bytes], Value | None]
    wants_turn: Callable[[], bool]
    evaluate: Callable[[], None]
    hurries: Callable[[], bool]
    next_deadline: Callable[[], float | None]

    def __init__(self) -> None:
        self._by_id: dict[int, Replica] = {}
        self._holder: Replica  # the replica of every key

    def add(self, replica: Replica) -> None:
        """Add the replica of a range; only of the first one yet, which contains every key."""
        assert not self._by_id
        self._by_id[replica.range_id] = self._holder = replica
        self.submit, self.try_get = replica.submit, replica.try_get
        self.wants_turn, self.next_deadline = replica.wants_turn, replica.next_deadline
        self.hurries = replica.hurries
        self.evaluate = replica.turn

    def by_id(self, range_id: int) -> Replica:
        """Return the replica of a range."""
        return self._by_id[range_id]

    def by_key(self, key: bytes) -> Replica:
        """Return the replica of the range that contains ``key``."""
        del key
        return self._holder

    # --- requests

    def cancel(self, call: Call) -> bool:
        """Forget a request that still waits; false if it is too late for that."""
        return self._holder.cancel(call)

    @property
    def failed(self) -> Error | None:
        """Return the error that every request gets once the node has stopped, or ``None``."""
        return self._holder.failed

    @property
    def is_used_up(self) -> bool:
        """Return whether requests of clients have to wait for the next turn."""
        return self._holder.is_used_up()

    def charge(self, steps: int) -> None:
        """Charge this turn for the steps that were spent on taking requests in."""
        self._holder.charge(steps)

    def on_room(self, act: Callable[[], None]) -> None:
        """Have ``act`` called with each turn, which has room for reads again."""
        self._holder.on_room, self._holder.reads.only_commits = act, False

    # --- locks, claims and leases of clients

    @property
    def lease_sequence(self) -> int:
        """Return the sequence number of the lease here.

        Everything in memory for clients is gone under another one.
        """
        return self._holder.lease.sequence

    def holds_for(self, client: bytes) -> bool:
        """Return whether a client, or its transactions, hold something."""
        return self._holder.holds_for(client)

    def clients_that_hold(self) -> set[bytes]:
        """Return the clients that hold something in the stored state, connected or not."""
        return self._holder.clients_that_hold()

    def on_lease(self, act: Callable[[], None]) -> None:
        """Have ``act`` called when this node has begun to serve under a new lease."""
        self._holder.memory.on_begun = act

    def release_client(self, client: bytes) -> None:
        """Release everything that is held for the transactions of a client that has gone."""
        self._holder.release_client(client)

    def sizes(self) -> dict[str, int]:
        """Return how much is kept in memory for clients, by name."""
        return self._holder.sizes()

    # --- a turn

    def refuse(self, refusal: RefusedCalls | None) -> None:
        """Refuse some requests from now on; ``None``: none."""
        self._holder.refuse(refusal)

    def start_anew(self) -> None:
        """Drop all memory kept for clients, as after a change of leader, and serve again."""
        self._holder.stop_serving()
        if self._holder.group.is_leader:
            self._holder.wake_up()

    def fail_all(self, error: Error) -> None:
        """Answer every waiting or later request with ``error``, because the node stops."""
        self._holder.fail_all(error)
