"""The called side of native streams: for clients, and for other nodes.

::

    connection ─▶ preamble, Opening ─▶ who may? ─┬─ talk ───▶ Session      answers go out
                                                 ├─ frames ─▶ Arrival      frames come in
                                                 ├─ hello, admit ─▶ one answer, and the end
                                                 └─ no ─────▶ Refusal, and the end

A shell: who may come in, and what comes of it, is decided by :mod:`.security`,
:mod:`.nodes_service` and :mod:`.sessions`, for this door and for gRPC alike.

A caller that is refused is told why. What it still sends is read and thrown away for a moment: else
TCP would reset the connection, and the reason would be lost on its way.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
from collections import deque
from typing import Any, Final, Protocol

from postroom.client.remote.native import WRITE_BUFFER_BYTES
from postroom.errors import AccessDenied
from postroom.limits import FRAME_BYTES_MAX, PEER_MESSAGE_BYTES_MAX
from postroom.protocol.failures import WireError
from postroom.protocol.streams import (
    ADMIT,
    DENIED,
    FRAMES,
    HELLO,
    MALFORMED,
    TALK,
    UNAVAILABLE,
    Accepted,
    Incoming,
    Opening,
    Refusal,
    framed,
    read_opening,
    reply_bytes,
)
from postroom.server.cluster.access import Role
from postroom.server.cluster.connections import Connection
from postroom.server.cluster.introductions import Refused
from postroom.server.cluster.node_keys import key_of
from postroom.server.cluster.nodes_service import Caller, NodesService
from postroom.server.cluster.peers import Arrival
from postroom.server.cluster.security import Security
from postroom.server.cluster.session import LAST_WORDS_SECONDS, Session
from postroom.server.cluster.sessions import Sessions
from postroom.server.cluster.unfinished import Unfinished

LINGER_SECONDS: Final = 1.0
"""How long what a refused one still sends is read, and what is to be sent yet may take."""

_log = logging.getLogger(__name__)


class NativeDoor:
    """What streams are let in to.

    Args:
        security: who may come in.
        nodes: for other nodes.

    Attributes:
        sessions: for clients, once there is a node.
        unfinished: what has come in part, of clients.
        is_closed: nobody is let in any more.
    """

    def __init__(self, security: Security, nodes: NodesService) -> None:
        self.sessions: Sessions | None = None
        self.security = security
        self.nodes = nodes
        self.unfinished = Unfinished()
        self.streams: set[ServedStream] = set()
        self.is_closed = False

    def create(self, connection: Connection) -> ServedStream:
        """For a connection that has asked for a native stream."""
        return ServedStream(self, connection)

    def close(self) -> None:
        """End all streams, after what was written, and let in no more."""
        self.is_closed = True
        for stream in list(self.streams):
            stream.finish()

    async def closed(self) -> None:
        """Wait, for a moment at most, until all are gone."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LINGER_SECONDS
        while self.streams and loop.time() < until:
            await asyncio.sleep(0.005)
        for stream in list(self.streams):
            stream.abort()
        await asyncio.sleep(0)


class _Conversation(Protocol):
    """What becomes of a stream that was let in."""

    def received(self, frame: bytes) -> None:
        """A frame has come in."""

    def room(self) -> None:
        """What was written has been taken."""

    def lost(self) -> None:
        """The stream is over."""


class ServedStream(asyncio.Protocol):
    """One stream that somebody else has opened. See the module.

    Args:
        door: what it is let in to.
        connection: that it comes over.

    Attributes:
        is_full: the other side does not take what is written.
        is_over: nothing is to be read, or written, any more.
    """

    def __init__(self, door: NativeDoor, connection: Connection) -> None:
        self.connection = connection
        self.is_full = False
        self._door = door
        self._incoming = Incoming()
        self._cut = 0
        self._conversation: _Conversation | None = None
        self._task: asyncio.Task[None] | None = None
        self.is_over = False
        self._transport: asyncio.Transport

    # --- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TCP, and TLS, are there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._door.streams.add(self)
        if self._door.is_closed:
            self.abort()
            return
        self.connection.drop = self.abort
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Bytes have come in."""
        if self.is_over:
            return
        try:
            for frame in self._incoming.feed(data):
                self._received(frame)
        except WireError as error:
            self.refuse(Refused(str(error), MALFORMED))
        except Refused as refused:
            self.refuse(refused)
        self._account()

    def _account(self) -> None:
        """What a client has sent of a frame counts, until it is whole."""
        if self.is_over or isinstance(self._conversation, _Node):
            return
        incoming = self._incoming
        began, self._cut = incoming.frames != self._cut, incoming.frames
        self._door.unfinished.holds(self, incoming.unfinished_bytes, began=began)

    def end_unfinished(self) -> None:
        """Its frame takes too long, and others need the room."""
        self._incoming = Incoming()
        self.refuse(Refused(
            "the node is receiving more than it has room for, and this frame is the slowest: "
            "send it again", UNAVAILABLE,
        ))  # fmt: skip

    def _received(self, frame: bytes) -> None:
        if self.is_over:
            return
        if self._conversation is not None:
            self._conversation.received(frame)
        elif self._task is None:
            self._open(read_opening(frame))
        else:
            raise WireError("something after the question")

    def eof_received(self) -> None:
        """The caller hangs up."""

    def pause_writing(self) -> None:
        """The other side is slow."""
        self.is_full = True

    def resume_writing(self) -> None:
        """It goes on."""
        self.is_full = False
        if self._conversation is not None and not self.is_over:
            self._conversation.room()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        del exc
        self.is_over = True
        self._door.streams.discard(self)
        self._door.unfinished.forget(self)
        self.connection.closed()
        self._end_conversation()

    # --- what conversations ask

    def accept(self, answer: bytes = b"") -> None:
        """Say that it is let in."""
        self._transport.write(reply_bytes(Accepted(answer)))

    def allow(self, frame_bytes_max: int) -> None:
        """It has said who it is: it may send what is long."""
        self._incoming.frame_bytes_max = frame_bytes_max
        self.connection.said_hello()

    def write(self, frame: bytes) -> None:
        """Send a frame."""
        self._transport.write(framed(frame))

    def read_on(self, *, reading: bool) -> None:
        """Whether what comes in is read."""
        if self.is_over:
            return
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def finish(self) -> None:
        """End it, after what was written."""
        self.is_over = True
        self._transport.close()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """End it at once."""
        self.is_over = True
        self._transport.abort()

    def refuse(self, refused: Refused) -> None:
        """Say why it ends, and end it."""
        if self.is_over:
            return
        caller, conversation = self.caller(), self._conversation
        who = f"the caller at {caller.where}"
        if isinstance(conversation, _Node):
            who = f"node {conversation.sender}"
        self._door.nodes.closed(who, caller, refused)
        self.say_goodbye(
            reply_bytes(Refusal(refused.code, str(refused)), first=conversation is None)
        )

    def say_goodbye(self, last_words: bytes) -> None:
        """Send them, and wait a moment for the other side to hang up."""
        self.is_over = True
        self._transport.resume_reading()
        self._transport.write(last_words)
        if self._transport.can_write_eof():  # not with TLS
            self._transport.write_eof()
        self._end_conversation()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def caller(self) -> Caller:
        """Who it is."""
        certificate: Any = self._transport.get_extra_info("peercert") or {}
        names = [
            name
            for kind, name in certificate.get("subjectAltName", ())
            if kind in {"DNS", "IP Address"}
        ]
        subject = dict(pair for part in certificate.get("subject", ()) for pair in part)
        tls: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        return Caller(
            self.connection.where,
            tuple(names),
            subject.get("commonName", ""),
            b"" if tls is None else key_of(tls.getpeercert(binary_form=True)),
        )

    # ---

    def _end_conversation(self) -> None:
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            conversation.lost()
        if self._task is not None:
            self._task.cancel()

    def _open(self, opening: Opening) -> None:
        match opening.method:
            case "talk":
                self._conversation = self._talk(opening)
            case "frames":
                self._conversation = _Node(self, self._door.nodes, opening.argument)
            case "hello":
                self._answer(self._door.nodes.say_hello())
            case "prove":
                self._door.nodes.prove(self.caller(), opening.argument)
                self._answer(b"")
            case "admit":
                self._task = asyncio.get_running_loop().create_task(self._admit(opening.argument))
            case _:
                raise Refused("a stream for nothing that is known here", MALFORMED)

    def _talk(self, opening: Opening) -> _Client:
        sessions = self._door.sessions
        if sessions is None:
            raise Refused("this node is in no cluster yet", UNAVAILABLE)
        try:
            role = self._door.security.role_of_client(opening.token, self.caller().common_name)
        except AccessDenied as denied:
            raise Refused(str(denied), DENIED) from denied
        return _Client(self, sessions, role)

    async def _admit(self, argument: bytes) -> None:
        try:
            self._answer(await self._door.nodes.judge(self.caller(), argument))
        except Refused as refused:
            self.refuse(refused)

    def _answer(self, answer: bytes) -> None:
        self.connection.said_hello()
        if not self.is_over:
            self.say_goodbye(reply_bytes(Accepted(answer)))


class _Client:
    """A client's requests and answers."""

    def __init__(self, stream: ServedStream, sessions: Sessions, role: Role) -> None:
        self._stream = stream
        self._is_told = False
        self._has_said_hello = False
        self._is_reading = True
        self._is_leaving = False
        self._waiting: deque[bytes] = deque()
        self._loop = asyncio.get_running_loop()
        self._session: Session = sessions.open(stream.connection.where, self._on_output, role)
        stream.accept()

    def received(self, frame: bytes) -> None:
        """Take it, if those before it are answered as far as the client reads."""
        if self._waiting or not self._session.reading:
            self._waiting.append(frame)
            self._look()
        else:
            self._take(frame)

    def _take(self, frame: bytes) -> None:
        self._session.received(frame)
        if not self._has_said_hello:
            self._has_said_hello = True
            self._stream.allow(FRAME_BYTES_MAX)

    def room(self) -> None:
        self._write()

    def lost(self) -> None:
        self._session.close()

    def _on_output(self) -> None:
        """There is something to take: after what else happens now."""
        if not self._is_told:
            self._is_told = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_told = False
        session, stream = self._session, self._stream
        while not (stream.is_full or stream.is_over):
            frame = session.take()
            if frame is None:
                if session.ended:
                    stream.say_goodbye(b"")
                    return
                break
            stream.write(frame)
        while self._waiting and session.reading:
            self._take(self._waiting.popleft())
        self._look()
        if session.ended and not (stream.is_over or self._is_leaving):
            self._is_leaving = True  # nobody counts any more what is left for it
            self._loop.call_later(LAST_WORDS_SECONDS, stream.abort)

    def _look(self) -> None:
        """A client that does not take its answers is not read from."""
        reading = self._session.reading and not self._waiting
        if reading != self._is_reading:
            self._is_reading = reading
            self._stream.read_on(reading=reading)


class _Node:
    """Another node's frames."""

    def __init__(self, stream: ServedStream, nodes: NodesService, introduction: bytes) -> None:
        self._stream = stream
        read_on = functools.partial(stream.read_on, reading=True)
        self._arrival: Arrival = nodes.enter(stream.caller(), introduction, stream.finish, read_on)
        self.sender = self._arrival.sender
        stream.allow(PEER_MESSAGE_BYTES_MAX)
        stream.accept()

    def received(self, frame: bytes) -> None:
        if not self._arrival.received((frame,)):
            self._stream.read_on(reading=False)

    def room(self) -> None:
        """Nothing is written."""

    def lost(self) -> None:
        _log.info("lost the connection from node %d", self.sender)
        self._arrival.close()


__all__ = ["ADMIT", "FRAMES", "HELLO", "TALK", "NativeDoor", "ServedStream"]
