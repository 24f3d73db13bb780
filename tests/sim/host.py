"""A simulated machine: one disk, one clock, and at times a node that runs on it.

A turn of the node is taken in its parts (:mod:`.turn`), as under the driver for threads.
Requests may be submitted in every state. The power may fail at any write, wherever in the code that
is: then the node is forgotten as it stands, and whoever waited for it hears that nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random  # noqa: TID251 - passed in, as an instance

from postroom.errors import CommitUnknown, Error, Unavailable
from postroom.kv.engine import EngineFailed
from postroom.kv.memory import MemoryDisk
from postroom.raft.transport import NoPeers
from postroom.ranges.calls import Call
from postroom.ranges.requests import CommitTransaction
from postroom.server.node import UPKEEP_SECONDS, Node
from postroom.server.node_options import NodeOptions
from tests.sim.both_ways import check_usual_way
from tests.sim.clock import VirtualClock
from tests.sim.disks import SEGMENT_BYTES, open_storage, write_gathered
from tests.sim.grants import Grants
from tests.sim.turn import Part, PowerFailure, ProcessDied, Turn


class Host:
    """See the module.

    Attributes:
        node: the node that runs; ``None`` while the machine is down.
        outstanding: the requests that the node has not answered yet, in order.
        opened: how often a node was started here.
        segment_bytes: of the log.
    """

    def __init__(self, clock: VirtualClock, randomness: Random, options: NodeOptions) -> None:
        self.disk = MemoryDisk()
        self.clock = clock
        self.random = randomness
        self.options = options
        self.node: Node | None = None
        self.outstanding: dict[Call, None] = {}
        self.opened = 0
        self.segment_bytes = SEGMENT_BYTES
        self.power_has_failed = False
        self.on_crash: Callable[[], object] = lambda: None
        self._turn = Turn()
        self._turn_due: float | None = None

    # --- being up and down

    def open(self) -> bool:
        """Start a node on what the disk holds; false if the power, or the disk, fails meanwhile."""
        assert self.node is None
        self._turn, self._turn_due = Turn(), None
        with self._powered():
            try:
                storage = open_storage(self.disk, self.random, self.segment_bytes)
            except Unavailable:
                return False
            try:
                node = Node(storage, self.clock, self.random, NoPeers(), self.options)
            except Unavailable:
                storage.close()
                return False
            check_usual_way(node)
            node.on_wake = self._on_wake
            self.grants = Grants(node)
            self.node = node
            self.opened += 1
            try:
                node.start()
            except Unavailable:
                self.node = None
        return self.node is not None

    def close(self) -> None:
        """Stop the node in good order, as the drivers do."""
        node = self.node
        assert node is not None
        with self._powered():
            while self._turn.is_under_way:
                self._take_part(node)
            while node.wants_turn():
                node.turn()
            self.node = None
            node.close()
        self._answer_outstanding()

    def write_gathered(self) -> None:
        """Write what the node has in memory and in its log into its state, too."""
        for _ in range(4):
            with self._powered(), suppress(EngineFailed):
                if self.node is not None:
                    write_gathered(self.node)
                    return
            self.reopen()

    def reopen(self) -> bool:
        """Close the node if there still is one, then open what the disk holds."""
        if self.node is not None:
            self.close()
        return self.open()

    def crash(self, *, power: bool) -> None:
        """End the process; with ``power`` the disk forgets some of what was not synced."""
        node, self.node = self.node, None
        self.power_has_failed = self.power_has_failed or power
        self.disk.crash(self.random if power else None)
        if node is not None:
            _forget(node)
        self._answer_outstanding()
        self.on_crash()

    @contextmanager
    def _powered(self) -> Iterator[None]:
        try:
            yield
        except ProcessDied:
            pass
        except PowerFailure:
            self.crash(power=True)

    def _answer_outstanding(self) -> None:
        """Clients notice that the connection is gone. Whether a commit took place, they cannot."""
        for call in list(self.outstanding):
            self.answer(call, None, lost(call.request))

    # --- requests

    def submit(self, call: Call) -> None:
        """Take a request; the node must be up."""
        assert self.node is not None
        self.outstanding[call] = None
        with self._powered():
            self.node.submit(call)

    def cancel(self, call: Call) -> bool:
        """Withdraw a request of a client; return false if it is too late."""
        if self.node is None or call not in self.outstanding:
            return False
        with self._powered():
            if self.node.replica.cancel(call):
                self.outstanding.pop(call, None)
                return True
        return False

    def answer(self, call: Call, result: object, error: BaseException | None) -> None:
        """Hand on an answer, unless the client has been told already."""
        if self.outstanding.pop(call, call) is None:
            call.complete(result, error)

    def now(self) -> int:
        """Return a timestamp of the node's.

        Raises:
            Unavailable: the node is down.
        """
        if self.node is not None:
            with self._powered():
                return self.node.clock.read()
        raise Unavailable("the node is down", retry_after=0.01)

    def reading(self) -> int:
        """About now, as the node's clock says.

        Raises:
            Unavailable: the node is down.
        """
        if self.node is None:
            raise Unavailable("the node is down", retry_after=0.01)
        clock = self.node.clock
        return clock.lasting() or self.now()

    # --- turns

    def serves(self) -> bool:
        """Whether a node is up that has not failed."""
        return self.node is not None and self.node.failed is None

    @property
    def busy(self) -> bool:
        """Whether a turn is under way."""
        return self._turn.is_under_way

    def due(self) -> float | None:
        """When the next part of a turn is due, on the monotonic clock."""
        node = self.node
        if node is None or (node.failed is not None and not self.busy):
            return None
        if self.busy or node.wants_turn():
            return self.clock.monotonic()
        deadlines = (self._turn_due, node.next_deadline())
        return min((each for each in deadlines if each is not None), default=None)

    def take_part(self) -> None:
        """Do the next part of a turn."""
        assert self.node is not None
        with self._powered():
            self._take_part(self.node)

    def _take_part(self, node: Node) -> None:
        if not self._turn.is_under_way:
            self._turn_due = None
        if self._turn.take_part(node) is Part.IDLE:
            self.grants.look()

    def _on_wake(self, urgent: bool) -> None:
        node = self.node
        hurry = urgent or (node is not None and node.hurries())
        due = self.clock.monotonic() + (0.0 if hurry else UPKEEP_SECONDS)
        self._turn_due = due if self._turn_due is None else min(self._turn_due, due)


def lost(request: object) -> Error:
    """Return the error for a request whose answer never comes."""
    if isinstance(request, CommitTransaction):
        return CommitUnknown("the node has died while the commit was under way")
    return Unavailable("the node has died", retry_after=0.01)


def _forget(node: Node) -> None:
    """Let go of a dead node's coroutines: nothing of them may run any more."""
    node.services.stop()
    node.tasks.stop()
