"""The refusals of one node: counted in memory, and told to the audit log now and then.

::

    session ── note(client, what) ──▶ counts ── once a minute ──▶ NoteRefusals: one write

The first ones are told within seconds. A refused request costs no write. The counts are bounded for
each client and in all: those beyond the bounds are counted without their descriptions. Counts that
could not be told are told later; a node that ends meanwhile takes them along.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol

from postroom.limits import (
    AUDITED_CHARACTERS_MAX,
    CLIENT_NAME_CHARACTERS_MAX,
    REFUSALS_TOLD_MAX,
    REFUSALS_TOLD_PER_CLIENT_MAX,
)
from postroom.ranges.audit import NoteRefusals, RefusedRequests
from postroom.ranges.carrier import Carrier, Recipient
from postroom.ranges.contract import ROOT_ID

TELL_SECONDS: Final = 5.0
"""The time for which the first refusals are counted before they are told."""
REST_SECONDS: Final = 60.0
"""The time from then on for which further ones are counted: a flood has a line a minute."""
OTHERS: Final = "other requests"
OTHER_CLIENTS: Final = "other clients"
_ROOT: Final = Recipient(ROOT_ID, b"", None)


class RefusingNode(Protocol):
    """The parts of their node that the refusals use."""

    @property
    def calls(self) -> Carrier:
        """Return the way to the leaseholders of ranges."""

    def call_after(self, seconds: float, act: Callable[[], None]) -> None:
        """Call ``act`` after a time."""


class Refusals:
    """The refusals of one node; see the module.

    Args:
        node: the node.
    """

    def __init__(self, node: RefusingNode) -> None:
        self._node = node
        self._counts: Counter[tuple[str, str]] = Counter()
        self._of_client: Counter[str] = Counter()
        self._is_timed = False

    def note(self, client: str, message: str) -> None:
        """Note that a request of a client was refused.

        Args:
            client: the name of the client.
            message: that of the error, which begins with what was refused.
        """
        client = client[:CLIENT_NAME_CHARACTERS_MAX]
        self._count(client, message.partition(";")[0][:AUDITED_CHARACTERS_MAX], 1)
        self._tell_soon()

    def _count(self, client: str, what: str, times: int) -> None:
        counts, of_client = self._counts, self._of_client
        if (client, what) not in counts:
            if of_client[client] >= REFUSALS_TOLD_PER_CLIENT_MAX:
                what = OTHERS
            elif len(counts) >= REFUSALS_TOLD_MAX:
                client, what = (client if of_client[client] else OTHER_CLIENTS), OTHERS
        of_client[client] += (client, what) not in counts
        counts[client, what] += times

    def _tell_soon(self) -> None:
        if not self._is_timed:
            self._is_timed = True
            self._node.call_after(TELL_SECONDS, self._tell)

    def _rested(self) -> None:
        self._is_timed = False
        if self._counts:
            self._is_timed = True
            self._tell()

    def _tell(self) -> None:
        self._node.call_after(REST_SECONDS, self._rested)
        told, self._counts = self._counts, Counter()
        self._of_client.clear()

        def answered(answer: Any) -> None:
            if isinstance(answer, BaseException):
                for (client, what), times in told.items():
                    self._count(client, what, times)

        refusals = [RefusedRequests(*what, times) for what, times in told.items()]
        self._node.calls.carry(_ROOT, NoteRefusals(refusals), answered)
