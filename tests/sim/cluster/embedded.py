"""A cluster of one, in the process of its clients: the embedded store.

::

    client ── LocalProcess ── on its way ──▶ node ── turn ──▶ disk     the only machine
       ▲                                      │
       └───────────── resumed ◀──── answer ◀──┘

There are no streams and no other nodes, so a request is handed to the node itself, some time after
others that were sent later, perhaps. It waits while the node is down. When the node ends, the
clients of what it has not answered are told that nobody knows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random  # noqa: TID251 - made from the seed
from typing import Any, Final, TypeVar

from postroom.client.database import CoreDatabase
from postroom.client.routing.local import AnyParts
from postroom.errors import CommitUnknown, Error, Unavailable
from postroom.kv.engine import EngineFailed
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.raft.interface import NoPeers
from postroom.ranges.bounds import WrongRange
from postroom.ranges.requests import CommitTransaction, Protect, Unprotect
from postroom.ranges.whole_protections import ReleaseWhole
from postroom.server.assembly import NodeOptions
from tests.sim import checkers, disks
from tests.sim.clock import MachineClock
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.machine import Machine
from tests.sim.sender import Answer, FirstAnswer, LocalProcess
from tests.sim.tasks import Task

T = TypeVar("T")

ON_ITS_WAY_SECONDS: Final = 0.0002
"""The most that a request takes to reach the node."""


class EmbeddedStore(Cluster):
    """An embedded store on one simulated machine.

    Args:
        seed: everything that happens follows from it.
        options: of the node.
        reading_seconds: how long it takes to read the wall clock.
        in_parts: whether anything may happen between the parts of a turn.

    Attributes:
        machine: the only one.
        turns_away: how often a client hears at once that the node is down, instead of waiting.
        heals: whether a node that is down, or has failed, is opened again at once.
    """

    def __init__(
        self,
        seed: int = 0,
        options: NodeOptions | None = None,
        *,
        reading_seconds: float = 0.0,
        in_parts: bool = True,
    ) -> None:
        options = options or NodeOptions(disk_reserve_bytes=0, poll_seconds=1.0)
        super().__init__(seed, [options], [(1.0, 0.0, reading_seconds)])
        (self.machine,) = self.machines
        self.machine.in_parts = in_parts
        self.machine.on_open = self._carry_all
        self.machine.on_end = self._lose_answers
        self.overseer.is_alone, self.overseer.is_synced = True, options.sync
        self.turns_away = 0.0
        self.heals = False
        self._on_their_way: dict[Answer, None] = {}
        self._outstanding: dict[Answer, None] = {}

    def _found(self, machine: Machine, number: int) -> None:
        """Leave the disk empty: an embedded store makes its first state itself."""
        machine.transport = NoPeers()

    @property
    def clock(self) -> MachineClock:
        """Return the clock of the machine."""
        return self.machine.clock

    def check(self) -> checkers.Content:
        """Check all that the disk holds, now and after a loss of what is in memory."""
        content = self.overseer.look()
        assert content is not None
        return content

    def write_gathered(self) -> None:
        """Write what the node has in memory and in its log into its state, too."""
        while not self._has_written():
            self.machine.reopen()

    def _has_written(self) -> bool:
        node = self.machine.node
        if node is None:
            return False
        try:
            self.machine.act(lambda: disks.write_gathered(node))
        except EngineFailed:
            return False
        return self.machine.node is node

    # --- clients

    def database(self, process: str = "process") -> CoreDatabase:
        """Return the database that the clients of one process share."""
        sender = LocalProcess(self, Random(f"{process} {self.seed}"))
        return self._database_of(sender, sender.now)

    def kill(self, task: Task, database: CoreDatabase) -> None:
        """Let a client die, and take back its waits and protections.

        A process with a store of its own dies as a whole, and in a cluster the session does this.
        """
        super().kill(task, database)
        sender = database._sender
        assert isinstance(sender, LocalProcess)
        for answer in list(self._outstanding):
            if answer.sender is sender and type(answer.request) not in {Unprotect, ReleaseWhole}:
                self._cancel(answer)
        for answer in list(self._on_their_way):
            if answer.sender is sender and getattr(answer.request, "wait", False):
                del self._on_their_way[answer]
        for moment in (+sender.protected).elements():
            self._carry(Answer(sender, Unprotect(moment)))
        for moment in (+sender.wholes).elements():
            self._carry(Answer(sender, ReleaseWhole(moment)))

    def forget_dead(self) -> None:
        """Let so much time pass that transactions of dead clients are over."""
        self.agenda.stand_still(TRANSACTION_SECONDS_MAX)

    def run_until(self, condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        """Let things happen until ``condition`` holds."""

        def holds() -> object:
            while self.heals and not self.machine.serves():
                self.machine.reopen()
            return condition()

        super().run_until(holds, what, seconds)

    def let_pass(self, seconds: float) -> None:
        """Let things happen for a time."""
        over: list[None] = []
        self.agenda.after(seconds, lambda: over.append(None))
        self.run_until(lambda: over, "time passes", seconds + 1.0)

    def retry(
        self, call: Callable[[], Awaitable[T]], database: CoreDatabase, what: str = "it is done"
    ) -> T:
        """Return the result of ``call``, once the store is there to answer it."""
        return super().retry(call, database, what)

    # --- calls of senders

    def send(self, answer: Answer) -> None:
        """Send a request of a client."""
        self.witness.sent(answer.request)
        if self.machine.node is None and self.random.random() < self.turns_away:
            answer.complete(None, Unavailable("the node is down", retry_after=0.01))
        else:
            self._carry(answer)

    def send_to_any(self, first: FirstAnswer, parts: list[Any]) -> None:
        """Hand the parts of a request to the node, which is up, or was when they were made."""
        node = self.machine.node
        if node is None:
            first.complete(None, Unavailable("the node is down", retry_after=0.01))
            return
        self._outstanding[first] = None
        replicas = node.replicas
        any_parts = AnyParts(replicas.submit, replicas.cancel)
        self.machine.act(lambda: any_parts.ask(first, parts))

    def first_answered(self, first: FirstAnswer) -> None:
        """Let a client go on."""
        self._outstanding.pop(first, None)
        self.resume(first)

    def submit(self, request: Any) -> Answer:
        """Hand a request of a new client to the node, which must be up; it is not evaluated yet."""
        answer = Answer(LocalProcess(self, self.random), request)
        self._submit(answer)
        return answer

    def withdraw(self, answer: Answer) -> bool:
        """Withdraw a request of a client; return false if it is too late."""
        if answer in self._on_their_way:
            del self._on_their_way[answer]
            return True
        return self._cancel(answer)

    def answered(self, answer: Answer) -> None:
        """Bring an answer to its client."""
        self._outstanding.pop(answer, None)
        result, error, sender = answer.result, answer.error, answer.sender
        self.note("answer", result if error is None else type(error).__name__)
        if isinstance(answer.request, Protect) and error is None:
            if sender.is_dead:
                self._carry(Answer(sender, Unprotect(result)))
            sender.protected[result] += 1
        if not (sender.is_dead or isinstance(error, WrongRange)):  # another range is asked
            self.witness.answered(answer.request, result, error)
        self.resume(answer)

    def now(self) -> int:
        """Return a timestamp for a client.

        Raises:
            Unavailable: the node is down.
        """
        node, read = self.machine.node, list[int]()
        if node is not None:
            self.machine.act(lambda: read.append(node.clock.read()))
        if not read:
            raise Unavailable("the node is down", retry_after=0.01)
        self.witness.handed_out(read[0])
        return read[0]

    def reading(self) -> int:
        """Return about now, as the node's clock says.

        Raises:
            Unavailable: the node is down.
        """
        node = self.machine.node
        if node is None:
            raise Unavailable("the node is down", retry_after=0.01)
        return node.clock.lasting() or self.now()

    # --- on the way, and at the node

    def _carry(self, answer: Answer) -> None:
        self._on_their_way[answer] = None
        delay = ON_ITS_WAY_SECONDS * self.random.random() ** 2
        machine = self.machine
        self.agenda.after(delay, lambda: machine.when_awake(lambda: self._arrive(answer)))

    def _carry_all(self) -> None:
        """Carry what has waited for the node."""
        for answer in list(self._on_their_way):
            self._carry(answer)

    def _arrive(self, answer: Answer) -> None:
        if self.machine.node is not None and answer in self._on_their_way:
            del self._on_their_way[answer]
            if not answer.cancelled:
                self._submit(answer)

    def _submit(self, answer: Answer) -> None:
        node = self.machine.node
        assert node is not None
        self._outstanding[answer] = None
        self.machine.act(lambda: node.replicas.submit(answer))

    def _cancel(self, answer: Answer) -> bool:
        node, is_cancelled = self.machine.node, list[bool]()
        if node is None or answer not in self._outstanding:
            return False
        self.machine.act(lambda: is_cancelled.append(node.replicas.cancel(answer)))
        if is_cancelled == [True]:
            self._outstanding.pop(answer, None)
            return True
        return False

    def _lose_answers(self) -> None:
        """Tell clients that the node has ended. They cannot know whether a commit took place."""
        for answer in list(self._outstanding):
            answer.complete(None, _lost(answer.request))


def transaction(
    number: int, *writes: Any, began: int, reads: Sequence[bytes] = ()
) -> CommitTransaction[Any]:
    """Return a commit that a client of an embedded store would send."""
    name = b"client 1" + number.to_bytes(8, "big")
    at = began if reads else 0
    spans: list[Any] = [(key, key + b"\x00") for key in reads]
    return CommitTransaction(name, began, 60.0, at, b"anchor", [], spans, list(writes))


def _lost(request: object) -> Error:
    """Return the error for a request whose answer never comes."""
    if isinstance(request, CommitTransaction):
        return CommitUnknown("the node has died while the commit was under way")
    return Unavailable("the node has died", retry_after=0.01)
