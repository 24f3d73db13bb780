"""The outcomes of calls without a plain answer: what their callers are told.

The client must be careful with one claim, "nothing happened":

* A refusal (``Unavailable``) is about one try. If an earlier one was lost, the call goes on.
* A failure that may not repeat later (``ConditionFailed``) says that earlier tries had no effect
  *yet*. It is final if none of them can be evaluated any more. This is true of tries that were
  lost at the same node, since it ends older streams before it welcomes a newer one. Otherwise the
  outcome is ``CommitUnknown``.
* After the deadline, ``Unavailable`` is for requests that certainly never took effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from postroom.client.routing.calls import RemoteCall
from postroom.client.routing.search import Addresses
from postroom.counted import counted
from postroom.errors import (
    CommitUnknown,
    DatabaseClosed,
    Error,
    TransactionConflict,
    TransactionExpired,
    Unavailable,
)
from postroom.kv.clock import from_seconds
from postroom.ranges.requests import CommitTransaction
from postroom.ranges.transactions.one_range import RECORD_SECONDS

_STAYS_SO: Final = (TransactionConflict, TransactionExpired)
"""The failures of a commit that later evaluations would meet as well."""
_RANGES_TOLD: Final = 10
"""The ranges that an error names."""


class Outcomes:
    """The outcomes of requests that were not plainly answered.

    Args:
        addresses: know why no node is reached.
        newest: the newest link that each node has welcomed; it has ended the older ones.
        reading: returns about now, by the cluster's clock, as a timestamp.
        request_seconds: the deadline of requests without a time-out of their own.
    """

    def __init__(
        self,
        addresses: Addresses,
        newest: Mapping[int, int],
        reading: Callable[[], int],
        request_seconds: float,
    ) -> None:
        self._addresses = addresses
        self._newest = newest
        self._reading = reading
        self._request_seconds = request_seconds

    def may_be_told_yet(self, call: RemoteCall) -> bool:
        """Return whether another commit can tell an unknown outcome."""
        if type(call.request) is not CommitTransaction:
            return call.is_commit
        return self._reading() < call.request.began + from_seconds(RECORD_SECONDS)

    def failed(self, call: RemoteCall, error: Exception) -> Exception:
        """Return the error for a call whose last try has failed with ``error``."""
        if call.maybe and not isinstance(error, _STAYS_SO) and self._is_adrift(call):
            return self.unknown(error)
        return error

    def cut_off(self, call: RemoteCall, *, closed: bool) -> Error:
        """Return the error for a call that was not answered in time, or before closing."""
        is_out = call.link is not None and call.number in call.link.sent
        if call.is_commit and (call.maybe or is_out):
            return self.unknown()
        if closed:
            return client_closed()
        if self._addresses.hung_up():
            return self._addresses.unwelcome()
        if call.refused is not None:
            return Unavailable(
                f"{call.refused} (asked {counted(call.refusals, 'time')} in "
                f"{self._request_seconds:g} s)",
                retry_after=call.refused.retry_after,
            )
        return Unavailable(
            f"no leader of {self.awaited(call)} answered within {self._request_seconds:g} s; "
            "nothing was changed: try again, or look after the nodes "
            f"({self._addresses.connection_errors()})",
            retry_after=0.5,
        )

    @staticmethod
    def awaited(call: RemoteCall) -> str:
        """Return the ranges whose answers are awaited, in words."""
        ids = sorted(_awaited(call))
        if not ids:
            return "the cluster"
        more = " and others" if len(ids) > _RANGES_TOLD else ""
        shown = ", ".join(map(str, ids[:_RANGES_TOLD]))
        return f"{'range' if len(ids) == 1 else 'ranges'} {shown}{more}"

    def unknown(self, error: Exception | None = None) -> CommitUnknown:
        """Return the error of a commit that was sent; ``error`` is that of its last try."""
        told = f"the last try was told: {error}" if error else self._addresses.connection_errors()
        unknown = CommitUnknown(
            "the commit was sent, and what became of it is not known: it may have happened, or "
            f"may yet; commit again with the same transaction id, or read what it wrote ({told})"
        )
        unknown.__cause__ = error
        return unknown

    def queue_full(self, call: RemoteCall, calls_max: int) -> Error:
        """Return the error for a call when there are too many to be sent."""
        if call.maybe:
            return self.unknown()
        return Unavailable(
            f"{calls_max} requests of this client wait to be sent already; nothing was "
            f"changed: try again after a moment ({self._addresses.connection_errors()})",
            retry_after=0.2,
        )

    def _is_adrift(self, call: RemoteCall) -> bool:
        """Return whether a lost try may be evaluated after the one that was answered."""
        return any(self._newest.get(node, 0) <= lost for node, lost in call.adrift)


def _awaited(call: RemoteCall) -> set[int]:
    """Return the ids of the ranges that have not answered a call, or a part of it."""
    way = call.way
    if call.done or way is None:
        return set()
    if way.parts:
        return set[int]().union(*map(_awaited, way.parts))
    return {way.range_id} if way.range_id > 0 else set()


def too_many_waits(calls_max: int) -> Error:
    """Return the error for a call when too many wait at a node already."""
    return Unavailable(
        f"{calls_max} requests of this client wait at the store already; nothing was "
        "changed: end some of them"
    )


def client_closed() -> Error:
    """Return the error for calls that come, or still wait, when the client is closed."""
    return DatabaseClosed("the database was closed; nothing was changed: connect again")


def clock_is_behind() -> Unavailable:
    """Return the error for requests that began by a later clock than the leader's.

    The clock of the node that leads was set back.
    """
    return Unavailable(
        "the clock of the node that leads is behind that of another one, by which this began; "
        "nothing was changed: try again, and set the clocks of the nodes",
        retry_after=0.5,
    )
