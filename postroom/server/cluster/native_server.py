"""The called side of native streams, for clients and for other nodes.

::

    connection ─▶ preamble, Opening ─▶ allowed? ─┬─ talk ───▶ Session      answers go out
                                                 ├─ frames ─▶ PeerArrival  frames come in
                                                 ├─ hello, prove, admit ─▶ one answer, and the end
                                                 └─ no ─────▶ Refusal, and the end

This is a shell: :mod:`.security`, :mod:`.nodes_service` and :mod:`.sessions` decide about callers
and their requests.

A caller that is refused is told why. Its later bytes are read and thrown away for a moment.
Otherwise TCP would reset the connection, and the reason would be lost on its way.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
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
    PROVE,
    TALK,
    UNAVAILABLE,
    Accepted,
    Incoming,
    Opening,
    StreamRefusal,
    framed,
    read_opening,
    reply_bytes,
)
from postroom.server.cluster.access import Access
from postroom.server.cluster.admission import (
    Connection,
    Connections,
    connections_max,
    raise_descriptor_limit,
)
from postroom.server.cluster.dialing import CallerRefused
from postroom.server.cluster.intake import Unfinished
from postroom.server.cluster.listener import Listener
from postroom.server.cluster.nodes_service import NodesService, StreamCaller
from postroom.server.cluster.peers import PeerArrival
from postroom.server.cluster.security import Security, key_of
from postroom.server.cluster.session import LAST_WORDS_SECONDS

LINGER_SECONDS: Final = 1.0
"""The time for which a refused caller is still read, and pending bytes may still be sent."""

_log = logging.getLogger(__name__)


class ServedSession(Protocol):
    """A stream of a client, as the server uses it: see :class:`.Session`."""

    @property
    def reading(self) -> bool:
        """Return whether the server may read on."""

    @property
    def ended(self) -> bool:
        """Return whether the stream is to be closed once everything was taken."""

    def received(self, frame: bytes) -> None:
        """Take a frame that has come in."""

    def take(self) -> bytes | None:
        """Return the next frame to send, or `None`."""

    def close(self) -> None:
        """Forget what it waits for: the stream is over."""


class ServedSessions(Protocol):
    """The streams of a node's clients, as the server uses them: see :class:`.Sessions`."""

    def open(self, peer: str, on_output: Callable[[], None], access: Access) -> ServedSession:
        """Open a stream."""

    def refused(self, who: str, reason: str) -> None:
        """Note a client that was not let in, for the audit log."""


class NativeServer:
    """The server of native streams on one node.

    Args:
        address: the address to listen at, ``host:port`` or ``unix:PATH``.
        security: decides which callers may come in.
        nodes: serves other nodes.
        connections: how many may be open; ``None``: as many as the process may have descriptors
            for, whose number is raised.

    Attributes:
        connections: all connections that have come in.
        sessions: for clients; ``None``: there is no node yet.
        unfinished: counts the unfinished frames of clients.
        is_closed: whether no stream is let in any more.
    """

    def __init__(
        self,
        address: str,
        security: Security,
        nodes: NodesService,
        connections: int | None = None,
    ) -> None:
        self.sessions: ServedSessions | None = None
        self.security = security
        self.nodes = nodes
        self.unfinished = Unfinished()
        self.streams: set[ServedStream] = set()
        self.is_closed = False
        self._loop = asyncio.get_running_loop()
        limit = connections or connections_max(raise_descriptor_limit())
        self.connections = Connections(self._loop.time, limit)
        self._listener = Listener(
            address, security.server_context, self.connections, partial(ServedStream, self)
        )

    @property
    def port(self) -> int:
        """Return the port at which it listens, perhaps chosen by the system."""
        return self._listener.port

    def bind(self) -> None:
        """Take the address. Callers are refused until :meth:`open`.

        Raises:
            Invalid: it cannot listen there.
        """
        self._listener.bind()

    def open(self) -> None:
        """Begin to listen.

        Raises:
            Invalid: it cannot listen there.
        """
        self._listener.open()

    def stop(self) -> None:
        """Let no connection in any more."""
        self._listener.stop()

    def let_go(self) -> None:
        """Close everything in the child of a fork, whose parent goes on to serve."""
        self.is_closed = True
        self._listener.let_go()

    async def close(self) -> None:
        """Let no connection in any more, and end the streams after their pending writes."""
        self.stop()
        self.is_closed = True
        for stream in list(self.streams):
            stream.finish()
        until = self._loop.time() + LINGER_SECONDS
        while self.streams and self._loop.time() < until:
            await asyncio.sleep(0.005)
        for stream in list(self.streams):
            stream.abort()
        await asyncio.sleep(0)
        await self._listener.close()


class ServedStream(asyncio.Protocol):
    """A stream that a client or another node has opened; see the module.

    Args:
        server: the server that it is a stream of.
        connection: the connection that it comes over.

    Attributes:
        is_full: whether the other side does not take more bytes now.
        is_over: whether nothing is to be read, or written, any more.
    """

    def __init__(self, server: NativeServer, connection: Connection) -> None:
        self.connection = connection
        self.is_full = False
        self._server = server
        self._incoming = Incoming()
        self._cut = 0
        self._conversation: _ClientConversation | _NodeConversation | None = None
        self._task: asyncio.Task[None] | None = None
        self.is_over = False
        self._transport: asyncio.Transport

    # --- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, since TCP, and TLS, are established."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.streams.add(self)
        if self._server.is_closed:
            self.abort()
            return
        self.connection.drop = self.abort
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Take bytes that have come in."""
        if not self.is_over:
            self._incoming.add(data)
            self.go_on()

    def go_on(self) -> None:
        """Take the frames that are there, as long as more are wanted.

        One read of the socket may bring ten thousand of them.
        """
        try:
            while not self.is_over and (self._conversation is None or self._conversation.reading):
                frame = self._incoming.cut()
                if frame is None:
                    break
                self._received(frame)
        except WireError as error:
            self.refuse(CallerRefused(str(error), MALFORMED))
        except CallerRefused as refused:
            self.refuse(refused)
        self._account()

    def _account(self) -> None:
        """Count the bytes of a client's frame until it is whole."""
        if self.is_over or isinstance(self._conversation, _NodeConversation):
            return
        incoming = self._incoming
        began, self._cut = incoming.frames != self._cut, incoming.frames
        self._server.unfinished.holds(self, incoming.unfinished_bytes, began=began)

    def end_unfinished(self) -> None:
        """Refuse the rest of a frame that takes too long, because others need the room."""
        self._incoming = Incoming()
        self.refuse(CallerRefused(
            "the node is receiving more than it has room for, and this frame is the slowest: "
            "send it again", UNAVAILABLE,
        ))  # fmt: skip

    def _received(self, frame: bytes) -> None:
        if self._conversation is not None:
            self._conversation.received(frame)
        elif self._task is None:
            self._open(read_opening(frame))
        else:
            raise WireError("something after the question")

    def eof_received(self) -> None:
        """Ignore that the caller hangs up."""

    def pause_writing(self) -> None:
        """Stop writing: the other side is slow."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Write on, in the next round of the loop.

        asyncio ends a connection twice, and logs an error, if a write within this call finds it
        broken.
        """
        self.is_full = False
        asyncio.get_running_loop().call_soon(self._write_on)

    def _write_on(self) -> None:
        if self._conversation is not None and not self.is_over and not self.is_full:
            self._conversation.room()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the stream, whose connection is lost."""
        del exc
        self.is_over = True
        self._server.streams.discard(self)
        self._server.unfinished.forget(self)
        self.connection.closed()
        self._end_conversation()

    # --- the part for conversations

    def accept(self, answer: bytes = b"") -> None:
        """Tell the caller that it is let in."""
        self._send(reply_bytes(Accepted(answer)))

    def allow(self, frame_bytes_max: int) -> None:
        """Allow long frames, since the caller has identified itself."""
        self._incoming.frame_bytes_max = frame_bytes_max
        self.connection.said_hello()

    def write(self, frame: bytes) -> None:
        """Send a frame."""
        self._send(framed(frame))

    def _send(self, data: bytes) -> None:
        """Write to the connection, unless it is broken: asyncio would log each write."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def read_on(self, *, reading: bool) -> None:
        """Begin or stop reading the connection."""
        if self.is_over:
            return
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def finish(self) -> None:
        """End the stream after its pending writes."""
        self.is_over = True
        self._transport.close()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """End the stream at once."""
        self.is_over = True
        self._transport.abort()

    def refuse(self, refused: CallerRefused) -> None:
        """Tell the caller why the stream ends, and end it."""
        if self.is_over:
            return
        caller, conversation = self.caller(), self._conversation
        who = f"the caller at {caller.where}"
        if isinstance(conversation, _NodeConversation):
            who = f"node {conversation.sender}"
        self._server.nodes.closed(who, caller, refused)
        self.say_goodbye(
            reply_bytes(StreamRefusal(refused.code, str(refused)), first=conversation is None)
        )

    def say_goodbye(self, last_words: bytes) -> None:
        """Send the last words, and wait a moment for the other side to hang up."""
        self.is_over = True
        self._transport.resume_reading()
        self._send(last_words)
        if self._transport.can_write_eof() and not self._transport.is_closing():  # not with TLS
            with suppress(OSError):  # it has gone, which no read has told yet
                self._transport.write_eof()
        self._end_conversation()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def caller(self) -> StreamCaller:
        """Return the caller, as TLS has proved it."""
        certificate: Any = self._transport.get_extra_info("peercert") or {}
        names = [
            name
            for kind, name in certificate.get("subjectAltName", ())
            if kind in {"DNS", "IP Address"}
        ]
        subject = dict(pair for name in certificate.get("subject", ()) for pair in name)
        tls: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        return StreamCaller(
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
        if opening.method == TALK:
            self._conversation = self._talk(opening)
        elif opening.method == FRAMES:
            self._conversation = _NodeConversation(self, self._server.nodes, opening.argument)
        elif opening.method == HELLO:
            self._answer(self._server.nodes.say_hello())
        elif opening.method == PROVE:
            self._server.nodes.prove(self.caller(), opening.argument)
            self._answer(b"")
        elif opening.method == ADMIT:
            self._task = asyncio.get_running_loop().create_task(self._admit(opening.argument))
        else:
            raise CallerRefused("a stream for nothing that is known here", MALFORMED)

    def _talk(self, opening: Opening) -> _ClientConversation:
        sessions = self._server.sessions
        if sessions is None:
            raise CallerRefused("this node is in no cluster yet", UNAVAILABLE)
        caller = self.caller()
        try:
            access = self._server.security.access_of_client(opening.token, caller.common_name)
            access = access.for_another(opening.argument)
        except AccessDenied as denied:
            who = caller.common_name or self.connection.host
            sessions.refused(who, str(denied))
            raise CallerRefused(str(denied), DENIED) from denied
        return _ClientConversation(self, sessions, access)

    async def _admit(self, argument: bytes) -> None:
        try:
            self._answer(await self._server.nodes.judge(self.caller(), argument))
        except CallerRefused as refused:
            self.refuse(refused)

    def _answer(self, answer: bytes) -> None:
        self.connection.said_hello()
        if not self.is_over:
            self.say_goodbye(reply_bytes(Accepted(answer)))


class _ClientConversation:
    """The requests and answers of a client."""

    def __init__(self, stream: ServedStream, sessions: ServedSessions, access: Access) -> None:
        self._stream = stream
        self._is_told = False
        self._has_said_hello = False
        self._is_reading = True
        self._is_leaving = False
        self._loop = asyncio.get_running_loop()
        self._session: ServedSession = sessions.open(
            stream.connection.where, self._on_output, access
        )
        stream.accept()

    @property
    def reading(self) -> bool:
        return self._session.reading

    def received(self, frame: bytes) -> None:
        self._session.received(frame)
        if not self._has_said_hello:
            self._has_said_hello = True
            self._stream.allow(FRAME_BYTES_MAX)
        self._look()

    def room(self) -> None:
        self._write()

    def lost(self) -> None:
        self._session.close()

    def _on_output(self) -> None:
        """Write the output, once the events of this moment are over."""
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
        stream.go_on()
        self._look()
        if session.ended and not (stream.is_over or self._is_leaving):
            self._is_leaving = True  # its last frames are not counted any more
            self._loop.call_later(LAST_WORDS_SECONDS, stream.abort)

    def _look(self) -> None:
        """Read on, or stop if the client takes no answers, or has used up its turn."""
        reading = self._session.reading
        if reading != self._is_reading:
            self._is_reading = reading
            self._stream.read_on(reading=reading)


class _NodeConversation:
    """The frames of another node."""

    def __init__(self, stream: ServedStream, nodes: NodesService, introduction: bytes) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._arrival: PeerArrival = nodes.enter(
            stream.caller(), introduction, stream.finish, self._on_room
        )
        self.sender = self._arrival.sender
        self.reading = True
        stream.allow(PEER_MESSAGE_BYTES_MAX)
        stream.accept()

    def received(self, frame: bytes) -> None:
        if not self._arrival.received(frame):
            self.reading = False
            self._stream.read_on(reading=False)

    def _on_room(self) -> None:
        """Read on when the turn that has made room is over, not in the middle of it."""
        self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        self.reading = True
        self._stream.read_on(reading=True)
        self._stream.go_on()

    def room(self) -> None:
        """Do nothing: nothing is written."""

    def lost(self) -> None:
        _log.info("lost the connection from node %d", self.sender)
        self._arrival.close()
