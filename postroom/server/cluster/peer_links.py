"""The stream to one other node, made again whenever it breaks.

These are its states, and the events between them (``TRANSITIONS``)::

    calling ─┬─ answered ──▶ connected ─┬─ broken ───▶ apart ─── call ──▶ calling
             ├─ no answer ──▶ apart     └─ refused ─┐
             └─ refused ───────────────────────────┴▶ refused ── call ──▶ calling
    any of them ── close ──▶ closed

Connecting goes on beside everything else, with growing pauses that chance spreads. The queue of
frames is bounded. Frames that have queued up while the other node did not take them leave together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from enum import IntEnum, auto
from random import Random  # noqa: TID251 - passed in, as an instance
from types import MappingProxyType
from typing import Final, Protocol

from postroom.limits import PEER_QUEUE_BYTES_MAX
from postroom.log_once import shown
from postroom.protocol.streams import UNAVAILABLE
from postroom.server.cluster.dialing import Dialer, NoAnswer, PeerStream, WrongKey

FRAMES_AT_ONCE: Final = 64

PAUSE_SECONDS_MIN: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0
LONGEST_REFUSED_PAUSE_SECONDS: Final = 5.0
"""The longest pause after a refusal. A refused node will most likely be refused again."""

_log = logging.getLogger(__name__)


class PeerLinkState(IntEnum):
    """The state of a link."""

    CALLING = auto()
    CONNECTED = auto()
    APART = auto()
    REFUSED = auto()
    CLOSED = auto()


class PeerLinkEvent(IntEnum):
    """An event of a link."""

    CALL = auto()
    """The end of the pause."""
    ANSWERED = auto()
    """The beginning of a stream."""
    BROKEN = auto()
    """The finding that there is no stream, or that it has ended, as streams do."""
    REFUSED = auto()
    """The other node's refusal, or the finding that it is not who it should be."""
    CLOSE = auto()


TRANSITIONS: Final = MappingProxyType({
    PeerLinkState.CALLING: {
        PeerLinkEvent.ANSWERED: PeerLinkState.CONNECTED,
        PeerLinkEvent.BROKEN: PeerLinkState.APART,
        PeerLinkEvent.REFUSED: PeerLinkState.REFUSED,
        PeerLinkEvent.CLOSE: PeerLinkState.CLOSED,
    },
    PeerLinkState.CONNECTED: {
        PeerLinkEvent.BROKEN: PeerLinkState.APART,
        PeerLinkEvent.REFUSED: PeerLinkState.REFUSED,
        PeerLinkEvent.CLOSE: PeerLinkState.CLOSED,
    },
    PeerLinkState.APART: {
        PeerLinkEvent.CALL: PeerLinkState.CALLING,
        PeerLinkEvent.CLOSE: PeerLinkState.CLOSED,
    },
    PeerLinkState.REFUSED: {
        PeerLinkEvent.CALL: PeerLinkState.CALLING,
        PeerLinkEvent.CLOSE: PeerLinkState.CLOSED,
    },
    PeerLinkState.CLOSED: dict.fromkeys(PeerLinkEvent, PeerLinkState.CLOSED),
})  # fmt: skip
"""The state after each event. An event that is not in it cannot happen."""


class PeerLinkOwner(Protocol):
    """The parts of the peers of a node (:mod:`.peers`) that a link uses.

    Attributes:
        dialer: calls other nodes.
        random: spreads tries to connect.
        monotonic: seconds that never go back.
    """

    dialer: Dialer
    random: Random
    monotonic: Callable[[], float]

    def introduction(self, receiver: int) -> bytes:
        """Return the first message of this node to another one."""

    def fault_of_key(self, node_id: int, fingerprint: bytes) -> str | None:
        """Return why the owner of a key is not the node; ``None``: it is, or there is no TLS."""

    def may_prove(self) -> bool:
        """Return whether no node leads, and this one can prove that it has the cluster's state."""


class PeerLink:
    """The link to one other node; see the module.

    Args:
        owner: the peers of this node.
        node_id: the other node.
        address: its address.

    Attributes:
        state: see above.
        connection_error: why there is no stream, in words; empty: there is one, or it is not known.
        fingerprint: of the key that the other node has shown; empty: no stream, or no TLS.
    """

    def __init__(self, owner: PeerLinkOwner, node_id: int, address: str) -> None:
        self.address = address
        self.state = PeerLinkState.APART
        self.connection_error = ""
        self.fingerprint = b""
        self._shown = b""
        self._owner = owner
        self._node_id = node_id
        self._where = shown(address)
        self._queue: list[bytes] = []
        self._bytes = 0
        self._stream: PeerStream | None = None
        self._dropping = False
        self._refusal = ""
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def connected(self) -> bool:
        """Return whether there is a stream."""
        return self.state is PeerLinkState.CONNECTED

    def _to(self, event: PeerLinkEvent) -> None:
        self.state = TRANSITIONS[self.state][event]

    def send(self, frame: bytes) -> None:
        """Send a frame now, or queue it if the other node does not take it."""
        stream = self._stream
        if stream is not None and not self._queue and stream.writable:
            stream.write((frame,))
            return
        if self._queue and self._bytes + len(frame) > PEER_QUEUE_BYTES_MAX:
            if not self._dropping:
                _log.warning("node %d takes no frames: they are dropped", self._node_id)
            self._dropping = True
            return
        self._queue.append(frame)
        self._bytes += len(frame)

    def _send_queued(self) -> None:
        while self._queue and self._stream is not None and self._stream.writable:
            frames = self._queue[:FRAMES_AT_ONCE]
            del self._queue[:FRAMES_AT_ONCE]
            self._bytes -= sum(map(len, frames))
            self._dropping = False
            self._stream.write(frames)

    async def _run(self) -> None:
        pause = PAUSE_SECONDS_MIN
        while self.state is not PeerLinkState.CLOSED:
            started = self._owner.monotonic()
            self._to(PeerLinkEvent.CALL)
            try:
                await self._talk()
                self._to(PeerLinkEvent.BROKEN)
                _log.info("lost the connection to node %d at %s", self._node_id, self._where)
            except NoAnswer as error:
                self._report(error)
            except Exception as error:  # a link that ended for good would be missed by all
                _log.exception("the stream to node %d at %s failed", self._node_id, self._where)
                self.connection_error = shown(error)
                self._to(PeerLinkEvent.BROKEN)
            except BaseException:
                self._to(PeerLinkEvent.CLOSE)
                raise
            finally:
                self._stream, self.fingerprint = None, b""
                self._queue.clear()
                self._bytes = 0
            # Otherwise the pause for a node that is restarted soon would be as long as for one that
            # is gone.
            is_refused = self.state is PeerLinkState.REFUSED
            if not is_refused and self._owner.monotonic() - started > LONGEST_PAUSE_SECONDS:
                pause = PAUSE_SECONDS_MIN
            longest = LONGEST_REFUSED_PAUSE_SECONDS if is_refused else LONGEST_PAUSE_SECONDS
            pause = min(pause, longest)
            await asyncio.sleep(pause * self._owner.random.uniform(0.5, 1.0))
            pause *= 2

    async def _talk(self) -> None:
        """Hold one stream, from its beginning to its end."""
        dialer = self._owner.dialer
        introduction = self._owner.introduction(self._node_id)
        self._shown = b""
        try:
            stream = await dialer.open(self.address, introduction, self._send_queued, self._fault)
        except WrongKey:
            if self._owner.may_prove():
                with contextlib.suppress(NoAnswer):
                    await dialer.prove(self.address, introduction)
            raise
        _log.info("connected to node %d at %s", self._node_id, self._where)
        self._to(PeerLinkEvent.ANSWERED)
        self._stream, self.fingerprint = stream, self._shown
        self.connection_error = self._refusal = ""
        self._send_queued()
        try:
            await stream.until_ended()
        finally:
            stream.close()

    def _fault(self, fingerprint: bytes) -> str | None:
        """Return why the node that answered is not the one we called, or ``None``."""
        self._shown = fingerprint
        return self._owner.fault_of_key(self._node_id, fingerprint)

    def _report(self, error: NoAnswer) -> None:
        self.connection_error = shown(error)
        was_connected, is_refused = self.connected, error.code != UNAVAILABLE
        self._to(PeerLinkEvent.REFUSED if is_refused else PeerLinkEvent.BROKEN)
        if is_refused:
            is_other = isinstance(error, WrongKey)
            self._report_refusal("is not who it should be" if is_other else "refuses")
        elif was_connected:
            _log.info("lost the connection to node %d at %s", self._node_id, self._where)
        else:
            _log.debug(
                "no connection to node %d at %s: %s",
                self._node_id,
                self._where,
                self.connection_error,
            )

    def _report_refusal(self, does: str) -> None:
        """Log a refusal as a warning once, until the link is accepted."""
        level = logging.DEBUG if self.connection_error == self._refusal else logging.WARNING
        _log.log(
            level, "node %d at %s %s: %s", self._node_id, self._where, does, self.connection_error
        )
        self._refusal = self.connection_error

    def close(self) -> None:
        """Close the link for good."""
        self._to(PeerLinkEvent.CLOSE)
        self._task.cancel()
