"""What a leaseholder keeps in memory: begun afresh from what is stored, and ended with the lease.

Its parts are those that have registered for it (:class:`.registry.Registry`): locks, claims,
counters, queues. It is also begun afresh under the same lease, when what is stored was replaced as
a whole.
"""

from __future__ import annotations

from collections.abc import Callable

from postroom.kv.cache import Cache
from postroom.kv.engine import Reader
from postroom.ranges.holders import Holders
from postroom.ranges.host import Host
from postroom.ranges.lease_holder import LeaseHolder
from postroom.ranges.registry import Registry
from postroom.ranges.waiting import Line


class FreshMemory:
    """See the module.

    Args:
        registry: who is told.
        stored: the node's engine.
        cache: of what is applied.
        holders: who holds something in memory.
        host: the node, whose services begin and end with it.
        lease_holder: knows whether this replica has the lease.
    """

    def __init__(
        self,
        registry: Registry,
        stored: Reader,
        cache: Cache,
        holders: Holders,
        host: Host,
        lease_holder: LeaseHolder,
    ) -> None:
        self._registry = registry
        self._stored = stored
        self._cache = cache
        self._holders = holders
        self._host = host
        self._lease_holder = lease_holder

    def begin(self) -> None:
        """A new lease: memory starts from what is stored."""
        self._cache.clear()
        self._holders.clear()
        for begin in self._registry.on_lease:
            begin(self._stored)
        self._host.on_serving(True)

    def end(self) -> None:
        """The lease is over, or the node stops: it is of no use to anybody."""
        self._holders.clear()
        for end in self._registry.on_lease_end:
            end()

    def refresh(self, wake: Callable[[list[object]], None], lines: dict[object, Line]) -> None:
        """What is stored was replaced as a whole: begin anew under the same lease. (Without one,
        memory begins with the next.)

        Args:
            wake: has those evaluated anew that wait for tokens.
            lines: who waits.
        """
        if self._lease_holder.has_lease:
            self._host.on_serving(False)
            self.end()
            self.begin()
            wake(list(lines))
