"""The replicas of a node: which there are, and the one door for requests to them.

::

    drivers, sessions, services ── submit, cancel, release ──▶ Replicas ──▶ the replica of the range
    the node's turn ─────────── evaluate, deadlines, fail ──────▶ └───────▶ all of them

Nobody outside asks which replica answers. There is one range yet, whose replica holds every key: so
the door for requests is that replica's own, and costs nothing. What comes with more ranges comes
here: a request goes to the range of its keys.
"""

from __future__ import annotations

from collections.abc import Callable

from postroom.errors import Error, Unavailable
from postroom.ranges.calls import Call
from postroom.ranges.replica import Replica
from postroom.ranges.requests import Value


class Replicas:
    """See the module.

    Attributes:
        submit: takes a request; ``call.complete`` is called once, perhaps before this returns.
        try_get: the newest value of a key, from any thread; ``None``: a ``Get`` must be submitted.
        wants_turn: whether ``evaluate`` would have something to do.
        evaluate: turns what waits into proposals.
        release_expired: nothing is held any more for transactions whose time is over.
    """

    submit: Callable[[Call], None]
    try_get: Callable[[bytes], Value | None]
    wants_turn: Callable[[], bool]
    evaluate: Callable[[], None]
    release_expired: Callable[[], None]

    def __init__(self) -> None:
        self._by_id: dict[int, Replica] = {}
        self._holder: Replica  # of every key

    def add(self, replica: Replica) -> None:
        """The node has a replica of one more range; of the first one, which holds every key."""
        assert not self._by_id
        self._by_id[replica.range_id] = self._holder = replica
        self.submit, self.try_get = replica.submit, replica.try_get
        self.wants_turn, self.evaluate = replica.wants_turn, replica.evaluate
        self.release_expired = replica.release_expired

    def by_id(self, range_id: int) -> Replica:
        """The replica of a range."""
        return self._by_id[range_id]

    def by_key(self, key: bytes) -> Replica:
        """The replica of the range that holds ``key``."""
        del key
        return self._holder

    # --- requests

    def cancel(self, call: Call) -> bool:
        """Forget a request that still waits; false if it is too late for that."""
        return self._holder.cancel(call)

    @property
    def failed(self) -> Error | None:
        """What everybody is told, once the node has stopped."""
        return self._holder.failed

    @property
    def is_used_up(self) -> bool:
        """Whether reads have had their share of this turn; those that come wait for the next."""
        return self._holder.is_used_up()

    def on_room(self, act: Callable[[], None]) -> None:
        """Have ``act`` called with each turn: there is room for reads again."""
        self._holder.on_room = act

    # --- what clients hold

    @property
    def lease_sequence(self) -> int:
        """Of the lease here. What is in memory for clients is gone under another one."""
        return self._holder.lease.sequence

    def holds_for(self, client: bytes) -> bool:
        """Whether a client, or its transactions, hold something."""
        return self._holder.holds_for(client)

    def clients_that_hold(self) -> set[bytes]:
        """The clients that hold something by what is stored, whether they are there or not."""
        return self._holder.clients_that_hold()

    def on_lease(self, act: Callable[[], None]) -> None:
        """Have ``act`` called when this node has begun to serve under a new lease."""
        self._holder.registry.on_lease.append(lambda _: act())

    def release_client(self, client: bytes) -> None:
        """A client has gone: nothing is held for its transactions any more."""
        self._holder.release_client(client)

    def sizes(self) -> dict[str, int]:
        """How much is kept in memory for clients, by name."""
        return self._holder.sizes()

    # --- a turn

    def hurries(self) -> bool:
        """Whether somebody waits for what upkeep will bring."""
        return bool(self._holder.waiting_for)

    def refuse(self, refusal: Unavailable | None) -> None:
        """What those who want to write are told from now on; ``None``: they are served."""
        self._holder.refuse(refusal)

    def next_deadline(self) -> float | None:
        """When a turn has something to do without being woken; ``None``: never."""
        return self._holder.next_deadline()

    def fail_all(self, error: Error) -> None:
        """Answer everything that waits, or will come, with ``error``: the node stops."""
        self._holder.fail_all(error)
