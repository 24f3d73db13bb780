"""The timestamps that a client has protected: to be released when its stream ends.

They are in the memory of the leaseholder, and gone with its lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from postroom.ranges.requests import Protect, Unprotect
from postroom.server.replicas import Replicas


class ClientProtections:
    """The protected timestamps of one client; see the module.

    Args:
        replicas: the node's.

    Attributes:
        count: how many timestamps are protected.
    """

    def __init__(self, replicas: Replicas) -> None:
        self.count = 0
        self._replicas = replicas
        self._timestamps: Counter[int] = Counter()
        self._asked: Counter[int] = Counter()
        self._under = 0

    def __bool__(self) -> bool:
        return bool(self._timestamps)

    def asks(self, request: Protect | Unprotect) -> None:
        """Note that the client has asked for that, and is not answered yet."""
        if type(request) is Protect:
            self._asked[request.timestamp] += 1

    def asks_no_more(self, request: Protect | Unprotect) -> None:
        """Note that the client is answered, or has withdrawn the request."""
        if type(request) is Protect:
            self._asked[request.timestamp] -= 1
            if not self._asked[request.timestamp]:
                del self._asked[request.timestamp]

    def may_protect(self, timestamp: int) -> bool:
        """Return whether a timestamp is protected for the client, or will be."""
        return self._are_protected if self._timestamps[timestamp] else timestamp in self._asked

    @property
    def _are_protected(self) -> bool:
        """Return whether they are still there, under the lease under which they were asked for."""
        return self._replicas.lease_sequence == self._under

    def note(self, request: Protect | Unprotect, timestamp: int) -> None:
        """Note that the node has protected, or released, a timestamp for this client."""
        under = self._replicas.lease_sequence
        if under != self._under:
            self._timestamps.clear()
            self.count = 0
            self._under = under
        if type(request) is Protect:
            self._timestamps[timestamp] += 1
            self.count += 1
        elif self._timestamps[request.timestamp] > 0:
            self._timestamps[request.timestamp] -= 1
            self.count -= 1
            if not self._timestamps[request.timestamp]:
                del self._timestamps[request.timestamp]

    def to_take_back(self) -> Iterator[int]:
        """Return each timestamp as often as it is protected; none if they are gone."""
        return self._timestamps.elements() if self._are_protected else iter(())
