"""The clients that have fallen silent: their locks, claims and waiting requests end.

::

    said something ── 5 s ─▶ stream ended ─▶ its transactions' locks and claims are released
          └────── stream broke ────── 5 s ───────────┘       (or it came back)

A client that waits for something, or holds something, says something every second; one that does
neither looks up every ten seconds. One timer serves all streams of the node.

Leases of queue messages are stored, and outlive the leader. The next leader has not heard of their
consumers, or not lately, since they held nothing there. They have as much time from then on as if
they had said something just now.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Protocol

from postroom.errors import Error, Unavailable
from postroom.server.replicas import Replicas

SILENT_SECONDS: Final = 5.0
"""The silence after which a client that holds something, or waits for something, has gone."""
IDLE_SECONDS: Final = 30.0
"""The silence after which any other client has gone."""
LOOK_SECONDS: Final = 0.5
"""The time between looks for silent clients."""


class SilenceNode(Protocol):
    """The parts of the node that this module uses."""

    monotonic: Callable[[], float]
    replicas: Replicas

    def call_after(self, seconds: float, act: Callable[[], None]) -> None:
        """Call ``act`` after a time."""


class SilenceStream(Protocol):
    """The parts of a session that this module uses."""

    client: bytes
    heard_at: float

    def is_busy(self) -> bool:
        """Return whether its client waits for something, or holds something."""

    def gone(self, reason: Error) -> None:
        """Tell the client why, and close the stream; unread answers are dropped."""


class ClientTimeouts:
    """The watch for silent clients on one node; see the module.

    Args:
        node: the node.
        streams: returns the open streams.
    """

    def __init__(self, node: SilenceNode, streams: Callable[[], Collection[SilenceStream]]) -> None:
        self._node = node
        self._streams = streams
        self._heard_at: dict[bytes, float] = {}
        self._looks_at: float | None = None
        node.replicas.on_lease(self._took_over)

    def _took_over(self) -> None:
        """Await all clients that hold something in the stored state, since this node leads now."""
        now, absent = self._node.monotonic(), self._node.replicas.clients_that_hold()
        for stream in self._streams():
            if stream.client in absent:
                absent.discard(stream.client)
                stream.heard_at = (
                    now  # it held nothing here until now, and could be silent for long
                )
        for client in sorted(absent):
            self._heard_at[client] = now
            self._look_soon()

    def opened(self, client: bytes) -> None:
        """Stop awaiting a client that has come, or come back."""
        self._heard_at.pop(client, None)
        self._look_soon()

    def closed(self, stream: SilenceStream) -> None:
        """Await the client of a stream that has ended, if it holds something here.

        It finds that again if it comes back soon.
        """
        client = stream.client
        if self._node.replicas.holds_for(client):
            self._heard_at[client] = stream.heard_at
            self._look_soon()

    def _look_soon(self) -> None:
        if self._looks_at is None:
            self._looks_at = self._node.monotonic() + LOOK_SECONDS
            self._node.call_after(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        now, planned = self._node.monotonic(), self._looks_at
        self._looks_at = None
        if planned is not None and now > planned + LOOK_SECONDS:
            self._forgive(now, now - planned)
        for stream in list(self._streams()):
            limit = SILENT_SECONDS if stream.is_busy() else IDLE_SECONDS
            if stream.heard_at + limit <= now:
                stream.gone(Unavailable(f"nothing was heard of the client for {limit:g} s"))
        for client, heard_at in list(self._heard_at.items()):
            if heard_at + SILENT_SECONDS <= now:
                del self._heard_at[client]
                self._node.replicas.release_client(client)
        if self._heard_at or self._streams():
            self._look_soon()

    def _forgive(self, now: float, seconds: float) -> None:
        """Allow for a time in which the node did not run, or was too busy, and heard no client."""
        for stream in self._streams():
            stream.heard_at = min(now, stream.heard_at + seconds)
        for client, heard_at in self._heard_at.items():
            self._heard_at[client] = min(now, heard_at + seconds)
