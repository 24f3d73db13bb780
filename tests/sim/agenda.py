"""The scheduler of a simulation: a heap of moments and of what happens then.

An agenda is a heap of moments and of what happens then. One thread takes the next entry, sets the
time to its moment, and carries it out; entries of one moment come in the order in which they were
made. A run is a function of its seed therefore.

An asyncio loop with a virtual clock (``looptime``), or one with virtual sockets
(``async-solipsism``), would not do. The simulated parts decide without asyncio: nodes, sessions and
routers are plain synchronous code, and clients are coroutines that await answers of whatever sender
they were given. An event loop would only add its own order of callbacks, which we would have to
control, and a microsecond or ten to each step. The gRPC shells do run on asyncio, but their network
is in C threads, which neither of the two can simulate. The heap below is all that is needed.

A simulation lives by :meth:`Agenda.step`: each event has a moment, chance is in the delays, and
what comes next follows. Three nodes with clocks of their own, links that are slow in one direction,
and a machine that stands still for a while could hardly be told otherwise.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

EVENTS_MAX: Final = 1_000_000
"""A wait that takes more events has stopped getting anywhere."""


class Agenda:
    """A heap of moments and of what happens then.

    Attributes:
        now: seconds since the world began, which nobody in it can see.
        events: how many entries were carried out.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._entries: list[tuple[float, int, Callable[[], object]]] = []
        self._made = 0

    def at(self, moment: float, act: Callable[[], object]) -> None:
        """Let something happen at ``moment``, or now if that is past."""
        self._made += 1
        heapq.heappush(self._entries, (moment, self._made, act))

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        """Let something happen after a time."""
        self.at(self.now + seconds, act)

    def stand_still(self, seconds: float) -> None:
        """Let time pass in which nothing happens: entries of that time come late."""
        self.now += seconds

    def step(self) -> None:
        """Let the next thing happen."""
        moment, _, act = heapq.heappop(self._entries)
        self.now = max(self.now, moment)
        self.events += 1
        act()

    def run_until(
        self,
        condition: Callable[[], object],
        what: str | Callable[[], str],
        seconds: float,
    ) -> None:
        """Let things happen until ``condition`` holds.

        Raises:
            AssertionError: it does not within ``seconds``: ``what`` says what was hoped for.
        """
        until, events = self.now + seconds, self.events + EVENTS_MAX
        while not condition():
            if self.now > until or self.events > events or not self._entries:
                told = what if isinstance(what, str) else what()
                raise AssertionError(f"{told}: nothing came of it in {seconds:g} s")
            self.step()

    def run(self, seconds: float) -> None:
        """Let things happen for a time."""
        over: list[None] = []
        self.after(seconds, lambda: over.append(None))
        self.run_until(lambda: over, "time passes", seconds + 1.0)
