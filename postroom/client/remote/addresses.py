"""Where nodes may be reached: what the application named, and what nodes said since.

Tried in turn: without a pause once all around, then with pauses that double, each cut short at
random so that many clients do not come back at once.
"""

from __future__ import annotations

import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Iterable
from typing import Final

from postroom.errors import AccessDenied, Unavailable, VersionMismatch

PAUSE_SECONDS_FIRST: Final = 0.01
LONGEST_PAUSE_SECONDS: Final = 0.2
LONGEST_IDLE_PAUSE_SECONDS: Final = 30.0
"""While nobody waits for anything: whoever then does is not kept waiting by it."""

_HOPELESS: Final = (AccessDenied, VersionMismatch)


class HungUp(Unavailable):
    """The node ended the connection before a word was said: it may not like what it was shown."""


class Addresses:
    """See the module.

    Args:
        seeds: what the application named.
        randomness: for the pauses.
    """

    def __init__(self, seeds: Iterable[str], randomness: random.Random) -> None:
        self._seeds = list(dict.fromkeys(seeds))
        self._random = randomness
        self._nodes: dict[int, str] = {}
        self._reasons: dict[str, Exception] = {}
        self._next = 0
        self._failures = 0

    @property
    def known(self) -> list[str]:
        """All of them."""
        return list(dict.fromkeys([*self._seeds, *self._nodes.values()]))

    def learn(self, nodes: Iterable[tuple[int, str]]) -> None:
        """The nodes of the cluster, as one of them has told."""
        self._nodes = dict(nodes) or self._nodes

    def of(self, node_id: int) -> str | None:
        """Where a node is."""
        return self._nodes.get(node_id)

    def next(self) -> str:
        """The next to try."""
        known = self.known
        self._next += 1
        return known[(self._next - 1) % len(known)]

    def pause(self, *, idle: bool) -> float:
        """Another attempt has failed: how many seconds to wait before the next one.

        Args:
            idle: nobody is waiting for anything.
        """
        self._failures += 1
        rounds = self._failures - len(self.known)
        if rounds <= 0:
            return 0.0
        longest = LONGEST_IDLE_PAUSE_SECONDS if idle else LONGEST_PAUSE_SECONDS
        pause = min(PAUSE_SECONDS_FIRST * 2.0 ** min(rounds, 16), longest)
        return pause * self._random.uniform(0.5, 1.0)

    def served(self) -> None:
        """A leader has answered: the next failure is the first again."""
        self._failures = 0

    def welcomed(self, address: str) -> None:
        """A node is there."""
        self._reasons.pop(address, None)

    def failed(self, address: str, reason: Exception | None) -> None:
        """The stream there has ended, or there was none."""
        if reason is not None:
            self._reasons[address] = reason

    def hopeless(self) -> Exception | None:
        """Why trying again makes no sense; ``None``: it does."""
        reasons = [self._reasons.get(address) for address in self.known]
        if reasons and all(isinstance(reason, _HOPELESS) for reason in reasons):
            return reasons[0]
        return None

    def hung_up(self) -> bool:
        """Whether that is what every node does."""
        return all(isinstance(self._reasons.get(address), HungUp) for address in self.known)

    def connection_errors(self) -> str:
        """What is the matter with each, for an error's message."""
        told = [
            f"{address}: {self._reasons[address]}"
            for address in self.known
            if address in self._reasons
        ]
        return "; ".join(told) or f"asked {', '.join(self.known)}"
