"""Which timestamps a client has protected: to be taken back when its stream ends.

They are in the memory of the leaseholder, and gone with its lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from postroom.ranges.requests import Protect, Unprotect
from postroom.server.replicas import Replicas


class ClientProtections:
    """See the module.

    Args:
        replicas: of the node.

    Attributes:
        count: how many.
    """

    def __init__(self, replicas: Replicas) -> None:
        self.count = 0
        self._replicas = replicas
        self._moments: Counter[int] = Counter()
        self._under = 0

    def __bool__(self) -> bool:
        return bool(self._moments)

    def may_hold(self, moment: int, asked: Iterable[Protect | Unprotect]) -> bool:
        """Whether a timestamp is protected for the client, or will be.

        Args:
            moment: the timestamp.
            asked: what it has asked for, and was not answered yet.
        """
        if self._moments[moment]:
            return self._are_held
        return any(type(each) is Protect and each.timestamp == moment for each in asked)

    @property
    def _are_held(self) -> bool:
        """They are still there, under the lease under which they were asked for."""
        return self._replicas.lease_sequence == self._under

    def note(self, request: Protect | Unprotect, moment: int) -> None:
        """The node has done that for this client."""
        under = self._replicas.lease_sequence
        if under != self._under:
            self._moments.clear()
            self.count = 0
            self._under = under
        if type(request) is Protect:
            self._moments[moment] += 1
            self.count += 1
        elif self._moments[request.timestamp] > 0:
            self._moments[request.timestamp] -= 1
            self.count -= 1
            if not self._moments[request.timestamp]:
                del self._moments[request.timestamp]

    def to_take_back(self) -> Iterator[int]:
        """Each as often as it was asked for; none if they are gone."""
        return self._moments.elements() if self._are_held else iter(())
