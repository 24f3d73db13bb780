"""The environment of the queues of a range: clocks, chance, calls that wake others, and a port.

The port is what the manager of a queue knows of the queues of its range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from postroom.kv.engine import Reader
from postroom.messaging.queues.consumers import WaitingClaim
from postroom.messaging.queues.leases import CreditWaits
from postroom.messaging.queues.records import QueueDamaged
from postroom.messaging.services import CommitWakeUp
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.memory import Holders

if TYPE_CHECKING:
    from postroom.messaging.queues.manager import Manager


class QueueHost(Protocol):
    """The clocks of a range, and the calls that a manager makes to the queues of its range.

    Attributes:
        kept: how long the past can be read, in timestamp units.
        credit: the consumers that wait for credit.
    """

    kept: int
    credit: CreditWaits

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def reading(self) -> int:
        """Return about now, as a timestamp."""

    def by_wall(self) -> int:
        """Return about now by the trusted wall clock, as a timestamp."""

    def look_at(self, manager: Manager) -> None:
        """Look at a queue with the next proposal: its waiting claims may be served."""

    def wake_by(self, manager: Manager, deadline: float) -> None:
        """Wake the service by that deadline on the monotonic clock for a queue."""

    def poll(self, manager: Manager) -> None:
        """Poll the stored state of a queue with waiting claims, if it is time."""

    def plan(self, manager: Manager) -> None:
        """Plan anew when something is due in a queue, since its memory has changed."""

    def holds(self, manager: Manager, client: bytes) -> None:
        """Note that a client's consumers began or ceased to hold messages of a queue."""

    def answer(self, waiter: WaitingClaim) -> None:
        """Answer a claim that waits."""

    def set_aside(self, error: QueueDamaged) -> None:
        """Set aside the queue of an error, which is damaged."""

    def current(self, manager: Manager) -> Manager:
        """Return the manager that its queue has now."""


CLIENTS_REMEMBERED = 10_000


class QueueEnvironment:
    """The environment of the queues of a range.

    Args:
        monotonic: the seconds of a clock that never goes back.
        reading: about now, as a timestamp.
        by_wall: the same by the wall clock alone. After a leader whose clock was ahead, timestamps
            go on from its own, and that has ended no lease.
        chance: a random number from 0 up to 1.
        check_age: a function that refuses timestamps that cannot be read at.
        wake_tokens: a function that answers requests that wait for tokens.
        holders: the transactions that hold messages.
        reader: the stored state at a timestamp that is protected as a whole.
        may_purge: the timestamp up to which nobody reads the past, at most a threshold.
        kept: how long the past can be read, in timestamp units.
        wake_up: the flag that wakes the service.
        forgets_strangers: whether a client that was not seen since the start of the node is gone.
            This is so in an embedded store, whose clients are in its process.
        rouse: a function that lets a store that rests begin to work.

    Attributes:
        refusals: the errors of claims that are about to be answered, by the identity of their
            requests.
        credit: the consumers that wait for credit.
        sleeps_until: until when the service sleeps, if it is not woken.
    """

    def __init__(  # noqa: PLR0913 - each is something else that is passed in
        self,
        *,
        monotonic: Callable[[], float],
        reading: Callable[[], int],
        by_wall: Callable[[], int],
        chance: Callable[[], float],
        check_age: Callable[[View, int], None],
        wake_tokens: Callable[[list[object]], None],
        holders: Holders,
        reader: Callable[[Reader, int], Reader],
        may_purge: Callable[[Evaluation, int], int],
        kept: int,
        wake_up: CommitWakeUp,
        forgets_strangers: bool,
        rouse: Callable[[], None],
    ) -> None:
        self.monotonic = monotonic
        self.reading = reading
        self.by_wall = by_wall
        self.chance = chance
        self.check_age = check_age
        self.kept = kept
        self.refusals: dict[int, Exception] = {}
        self.sleeps_until = 0.0
        self.agenda: Any = None
        self._wake_tokens = wake_tokens
        self._wake_up = wake_up
        self.credit = CreditWaits()
        self.forgets_strangers = forgets_strangers
        self.rouse = rouse
        self._seen: dict[bytes, None] = {}
        self.hold = holders.hold
        self.reader = reader
        self.may_purge = may_purge

    def wake(self, *, urgent: bool = False) -> None:
        """Wake the service: it has something to do now, and perhaps a claim waits for it."""
        self.rouse()
        self._wake_up.set(urgent=urgent)

    def wake_by(self, deadline: float) -> None:
        """Wake the service if it would sleep beyond a time at which it has something to do."""
        if deadline < self.sleeps_until:
            self._wake_up.set()

    def answer(self, waiter: WaitingClaim) -> None:
        """Answer a claim that waits."""
        self._wake_tokens([waiter])

    def answer_credit(self, _: object) -> None:
        """Answer the consumers that have credit again."""
        freed = self.credit.take_freed()
        if freed:
            self._wake_tokens(freed)

    def seen(self, client: bytes) -> None:
        """Note that a client is there."""
        if len(self._seen) >= CLIENTS_REMEMBERED and client not in self._seen:
            del self._seen[next(iter(self._seen))]
        self._seen[client] = None

    def may_be_there(self, client: bytes) -> bool:
        """Return whether a client that holds messages may still be there."""
        return not self.forgets_strangers or client in self._seen
