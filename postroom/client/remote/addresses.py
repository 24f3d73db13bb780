"""The addresses of nodes: those that the application named, and those that nodes told since.

They are tried in turn: once all around without a pause, then with pauses that double. Each pause is
cut short at random so that many clients do not come back at once.
"""

from __future__ import annotations

import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Iterable, Mapping
from typing import Final

from postroom.errors import AccessDenied, Unavailable, VersionMismatch

PAUSE_SECONDS_FIRST: Final = 0.01
LONGEST_PAUSE_SECONDS: Final = 0.2
LONGEST_IDLE_PAUSE_SECONDS: Final = 30.0
"""The longest pause while no call waits: a call that comes then ends the pause."""

_HOPELESS: Final = (AccessDenied, VersionMismatch)


class HungUp(Unavailable):
    """An error of a node that ended the connection at once: it may refuse what it was shown."""


class Addresses:
    """The addresses at which nodes may be reached.

    Args:
        seeds: the addresses that the application named.
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
        """Return all addresses."""
        return list(dict.fromkeys([*self._seeds, *self._nodes.values()]))

    def learn(self, nodes: Iterable[tuple[int, str]]) -> None:
        """Note the nodes of the cluster, as one of them has told them."""
        self._nodes = dict(nodes) or self._nodes

    def of(self, node_id: int) -> str | None:
        """Return the address of a node, or ``None``."""
        return self._nodes.get(node_id)

    def next(self) -> str:
        """Return the next address to try."""
        known = self.known
        self._next += 1
        return known[(self._next - 1) % len(known)]

    def pause(self, *, idle: bool) -> float:
        """Count a failed try; return how many seconds to wait before the next one.

        Args:
            idle: whether no call waits for anything.
        """
        self._failures += 1
        rounds = self._failures - len(self.known)
        if rounds <= 0:
            return 0.0
        longest = LONGEST_IDLE_PAUSE_SECONDS if idle else LONGEST_PAUSE_SECONDS
        pause = min(PAUSE_SECONDS_FIRST * 2.0 ** min(rounds, 16), longest)
        return pause * self._random.uniform(0.5, 1.0)

    def served(self) -> None:
        """Note that a leader has answered: the pauses begin again with the next failure."""
        self._failures = 0

    def welcomed(self, address: str) -> None:
        """Note that a node has answered at ``address``."""
        self._reasons.pop(address, None)

    def failed(self, address: str, reason: Exception | None) -> None:
        """Note that the stream to ``address`` has ended, or could not be opened."""
        if reason is not None:
            self._reasons[address] = reason

    def hopeless(self) -> Exception | None:
        """Return why another try makes no sense; ``None``: it makes sense."""
        reasons = [self._reasons.get(address) for address in self.known]
        if reasons and all(isinstance(reason, _HOPELESS) for reason in reasons):
            return reasons[0]
        return None

    def hung_up(self) -> bool:
        """Return whether every node hangs up."""
        return all(isinstance(self._reasons.get(address), HungUp) for address in self.known)

    def unwelcome(self) -> AccessDenied:
        """Return the error for :meth:`hung_up`."""
        return AccessDenied(
            "every node hangs up before anything is said; nothing was changed: give "
            "connect(tls=...) with a certificate that they accept, or connect(insecure=True) "
            f"if they have none ({self.connection_errors()})"
        )

    def connection_errors(self) -> str:
        """Return what failed at each address, for an error's message."""
        told = {each: self._reasons[each] for each in self.known if each in self._reasons}
        return in_words(told) or f"asked {', '.join(self.known)}"


def in_words(reasons: Mapping[str, object]) -> str:
    """Return why addresses do not answer, for an error's message: each reason once.

    Args:
        reasons: by address.
    """
    addresses: dict[str, list[str]] = {}
    for address, reason in reasons.items():
        # A refusal begins with the address; without it, the refusals of all nodes are the same.
        addresses.setdefault(str(reason).removeprefix(f"{address} "), []).append(address)
    return "; ".join(f"{', '.join(those)}: {reason}" for reason, those in addresses.items())
