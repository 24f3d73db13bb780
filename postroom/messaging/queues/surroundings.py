"""What the queues of a range are given: clocks, chance, and whom they wake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from postroom.messaging.queues.consumers import Waiter
from postroom.messaging.services import Signal
from postroom.ranges.evaluation import View
from postroom.ranges.holders import Holders
from postroom.ranges.protections import Protections

CLIENTS_REMEMBERED = 10_000


class Surroundings:
    """See the module.

    Args:
        monotonic: seconds that never go back.
        reading: about now, as a timestamp.
        by_wall: the same by the wall clock alone. After a leader whose clock was ahead its
            timestamps go on, and that has ended no lease.
        chance: a random number from 0 up to 1.
        check_age: refuses timestamps that cannot be read at.
        wake_tokens: answers requests that wait for tokens.
        holders: told which transactions hold messages.
        protections: of the past that is being read.
        kept: how long the past can be read, in timestamp units.
        signal: wakes the service.
        forgets_strangers: whether who has not been seen since the node was started cannot be there
            any more: as in an embedded store, whose clients are in its process.

    Attributes:
        refusals: of claims that are about to be answered, by the identity of their requests.
        reader: what was stored at a timestamp that is protected as a whole.
        sleeps_until: until when the service sleeps, if nobody wakes it.
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
        protections: Protections,
        kept: int,
        signal: Signal,
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
        self._protections = protections
        self._signal = signal
        self.forgets_strangers = forgets_strangers
        self.rouse = rouse
        self._seen: dict[bytes, None] = {}
        self.hold = holders.hold
        self.reader = protections.reader

    def may_purge(self, threshold: int) -> int:
        """Up to where the past is read by nobody."""
        return self._protections.limit(threshold)

    def wake(self) -> None:
        """The service has something to do now."""
        self.rouse()
        self._signal.set()

    def wake_by(self, moment: float) -> None:
        """It has something to do then."""
        if moment < self.sleeps_until:
            self._signal.set()

    def answer(self, waiter: Waiter) -> None:
        """A claim that waits can be answered."""
        self._wake_tokens([waiter])

    def seen(self, client: bytes) -> None:
        """A client is there."""
        if len(self._seen) >= CLIENTS_REMEMBERED and client not in self._seen:
            del self._seen[next(iter(self._seen))]
        self._seen[client] = None

    def may_be_there(self, client: bytes) -> bool:
        """Whether a client that holds something may be there yet."""
        return not self.forgets_strangers or client in self._seen


class Nobody:
    """Around a manager that only looks at what is stored."""

    def __init__(self, around: Surroundings) -> None:
        self.kept = around.kept
        self.monotonic, self.reading = around.monotonic, around.reading

    def look_at(self, _: object) -> None:
        """Nobody is woken."""

    def wake_by(self, _: float) -> None:
        """Nobody is woken."""

    def answer(self, _: Waiter) -> None:
        """Nobody waits."""

    def set_aside(self, _: object) -> None:
        """Nobody is told."""

    def current(self, manager: Any) -> Any:
        """The same."""
        return manager
