"""The client's router: finds who leads, keeps requests going until they are answered.

(The interface; the inside follows.)
"""

from __future__ import annotations

import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Callable, Iterable
from typing import Final

from postroom.client.remote.calls import Port, RemoteCall

REQUEST_SECONDS: Final = 15.0


class Router:
    """See the module.

    Args:
        addresses: of some nodes, ``host:port``.
        port: the shell.
        monotonic: seconds that never go back.
        randomness: for the client's id and for jitter.
        request_seconds: after which a request without a time-out of its own ends.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        port: Port,
        monotonic: Callable[[], float],
        randomness: random.Random,
        *,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None: ...

    def start(self) -> None:
        """Begin to look for the cluster (asks the port for a link and an alarm)."""

    def submit(self, call: RemoteCall) -> None:
        """Take a request. ``call.complete`` is called once, perhaps before this returns."""

    def cancel(self, call: RemoteCall) -> None:
        """Nobody wants the answer any more: ``complete`` will not be called."""

    def reading(self) -> int:
        """About now, as a timestamp: the newest that was heard, and the time since then."""

    def take(self, link: int) -> bytes | None:
        """The next frame to write to the link; ``None``: nothing, until ``Port.output``."""
        return None

    def received(self, link: int, frame: bytes) -> None:
        """A frame has come in."""

    def disconnected(self, link: int, reason: Exception | None) -> None:
        """The stream has ended, or could not be opened."""

    def tick(self) -> None:
        """It may be time for something (``Port.alarm``)."""

    def close(self) -> None:
        """End everything. What was not answered by now gets an error."""


__all__ = ["Port", "RemoteCall", "Router"]
