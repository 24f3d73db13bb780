"""The calls to other nodes: by native streams first, by gRPC if those are not spoken.

::

    ask(address, HELLO)      one question, one answer
    open(address, ...)       a stream on which frames are sent, until it ends

During a rolling upgrade a node meets nodes of the first release, which speak gRPC only
(:mod:`.grpc_dialing`, which is imported when the first of them is met). A stream over gRPC is given
up as soon as the other node speaks the new protocol, which is tried now and then.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from postroom.client.remote.doors import REMEMBERED_SECONDS, Doors
from postroom.client.remote.native import (
    CertificateCheck,
    Stream,
    Turned,
    ask,
    dial,
    why_not_connected,
)
from postroom.errors import Error, Invalid
from postroom.limits import NODE_ANSWER_BYTES_MAX, OPENING_BYTES_MAX
from postroom.protocol.failures import WireError
from postroom.protocol.streams import (
    DENIED,
    FRAMES,
    HELLO,
    PROVE,
    UNAVAILABLE,
    Opening,
    OtherProtocol,
)
from postroom.server.cluster.node_keys import fingerprint_of
from postroom.server.cluster.security import Security

if TYPE_CHECKING:
    from postroom.server.cluster.grpc_dialing import GrpcDialer

ACCEPT_SECONDS: Final = 5.0
FOR_EVER_SECONDS: Final = 3600.0

_log = logging.getLogger(__name__)

_WORDS: Final = (
    ("connection refused", "nobody listens there"),
    ("wrong version number", "it speaks no TLS: it seems to be started with --insecure"),
    ("hostname mismatch", "its certificate does not name this address"),
    ("ip address mismatch", "its certificate does not name this address"),
    ("certificate has expired", "its certificate, or that of its authority, has expired"),
    (
        "certificate verify failed",
        "its certificate is none of this node's authority, or expired",
    ),
    ("closed", "it hangs up: it may ask for a certificate of its authority"),
    ("reset", "it hangs up: it may ask for a certificate of its authority"),
    ("broken pipe", "it hangs up: it may ask for a certificate of its authority"),
)
"""The reasons, in small letters, and their meanings; the first that fits counts."""


class NoAnswer(Exception):
    """The finding that a node could not be asked, or its stream has ended; the message says why.

    Args:
        said: why, for people.
        code: the code that it gave (:mod:`postroom.protocol.streams`); ``UNAVAILABLE``: none.
    """

    def __init__(self, said: str, code: str = UNAVAILABLE) -> None:
        super().__init__(said)
        self.code = code


class WrongKey(NoAnswer):
    """The finding that the node that answered is not the one we called. It was told nothing.

    Args:
        said: why.
    """

    def __init__(self, said: str) -> None:
        super().__init__(said, DENIED)


KeyCheck: TypeAlias = Callable[[bytes], str | None]
"""A check of the other node's fingerprint, by TLS; it answers why that is not the right one."""


class Outgoing(Protocol):
    """A stream to another node."""

    is_native: bool

    @property
    def writable(self) -> bool:
        """Return whether the other node takes more frames."""

    def write(self, frames: Sequence[bytes]) -> None:
        """Send frames, in order, while it is ``writable``."""

    async def until_ended(self) -> None:
        """Wait for its end.

        Raises:
            NoAnswer: it did not end in good order.
        """

    async def close(self) -> None:
        """Close the stream."""


class Dialer:
    """The caller of other nodes; see the module.

    Args:
        security: the proofs that this node shows.
        speaks_native: whether to try native streams at all.
    """

    def __init__(self, security: Security, *, speaks_native: bool = True) -> None:
        self._security = security
        self._speaks_native = speaks_native
        self._doors = Doors()
        self._grpc: GrpcDialer | None = None

    async def ask(
        self,
        address: str,
        method: str,
        argument: bytes,
        seconds: float,
        check: KeyCheck | None = None,
    ) -> bytes:
        """Ask the node at ``address`` a question, and return its answer.

        Args:
            address: the node's address.
            method: ``HELLO`` or ``ADMIT``.
            argument: the argument of the question.
            seconds: how long to wait for the answer.
            check: checks the node's key; ``None``: any node may answer.

        Raises:
            NoAnswer: there is none.
        """
        opening, judge = Opening(method, argument), judging(check)
        try:
            async with asyncio.timeout(seconds):
                if self._is_native(address):
                    try:
                        answer: bytes = await self._native(
                            ask(address, self._context, opening, NODE_ANSWER_BYTES_MAX, judge)
                        )
                        return answer
                    except OtherProtocol:
                        self._speaks_grpc_only(address)
                return await self._over_grpc().ask(address, method, argument, seconds, judge)
        except TimeoutError:
            raise NoAnswer("no answer") from None

    async def open(
        self,
        address: str,
        introduction: bytes,
        on_room: Callable[[], None],
        check: KeyCheck | None = None,
    ) -> Outgoing:
        """Open a stream to the node at ``address``, which has accepted it.

        Args:
            address: the node's address.
            introduction: this node's description of itself.
            on_room: called when the stream takes frames again.
            check: as for :meth:`ask`.

        Raises:
            NoAnswer: the stream could not be opened.
        """
        judge = judging(check)
        if self._is_native(address):
            stream = _Native(introduction, on_room, judge)
            try:
                await self._native(stream.open(address, self._context))
                return stream
            except OtherProtocol:
                self._speaks_grpc_only(address)
        return await self._over_grpc().open(address, introduction, on_room, judge)

    async def prove(self, address: str, introduction: bytes) -> None:
        """Tell the node at ``address``, whatever its key, that this node has the state.

        Raises:
            NoAnswer: it does not listen.
        """
        try:
            async with asyncio.timeout(ACCEPT_SECONDS):
                opening = Opening(PROVE, introduction)
                await self._native(ask(address, self._context, opening, NODE_ANSWER_BYTES_MAX))
        except (TimeoutError, OtherProtocol):
            raise NoAnswer("no answer") from None

    def ended(self, address: str) -> None:
        """Forget the protocol of ``address``, whose stream has ended: it may speak another one."""
        self._doors.forget(address)

    async def await_better(self, stream: Outgoing, address: str) -> None:
        """Wait until native streams are spoken at ``address``, to which ``stream`` is over gRPC."""
        while stream.is_native or not self._speaks_native:
            await asyncio.sleep(FOR_EVER_SECONDS)
        opening = Opening(HELLO)
        while True:
            await asyncio.sleep(REMEMBERED_SECONDS)
            try:
                async with asyncio.timeout(ACCEPT_SECONDS):
                    await ask(address, self._context, opening, NODE_ANSWER_BYTES_MAX)
            except (OSError, Error, WireError):
                continue
            return

    async def close(self) -> None:
        """Close the gRPC channels."""
        if self._grpc is not None:
            await self._grpc.close()

    # ---

    @property
    def _context(self) -> ssl.SSLContext | None:
        return self._security.client_context

    def _is_native(self, address: str) -> bool:
        now = asyncio.get_running_loop().time()
        return self._speaks_native and self._doors.is_native(address, now)

    def _speaks_grpc_only(self, address: str) -> None:
        self._doors.speaks_grpc_only(address, asyncio.get_running_loop().time())

    def _over_grpc(self) -> GrpcDialer:
        if self._grpc is None:
            try:
                from postroom.server.cluster.grpc_dialing import GrpcDialer  # noqa: PLC0415
            except ImportError:
                raise NoAnswer(
                    "it speaks gRPC only, as the first release did, and gRPC is not installed here"
                ) from None
            self._grpc = GrpcDialer(self._security)
        return self._grpc

    async def _native(self, conversation: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await conversation
        except OtherProtocol:
            raise
        except Turned as refusal:
            raise NoAnswer(str(refusal), refusal.code) from refusal
        except OSError as error:
            raise NoAnswer(in_words(why_not_connected(error))) from error
        except (Error, WireError) as error:
            raise NoAnswer(in_words(str(error))) from error


def judging(check: KeyCheck | None) -> CertificateCheck | None:
    """Return ``check`` as a check of a certificate."""
    if check is None:
        return None

    def judge(certificate: bytes) -> WrongKey | None:
        try:
            fault = check(fingerprint_of(certificate))
        except Invalid as error:
            return WrongKey(f"the key of its certificate cannot be read: {error}")
        return None if fault is None else WrongKey(fault)

    return judge


def in_words(said: str) -> str:
    """Return why another node does not answer, in words that say what to look at."""
    return next((words for part, words in _WORDS if part in said.lower()), said)


class _Native:
    """A native stream to another node, with :class:`postroom.client.remote.native.Events`."""

    is_native = True

    def __init__(
        self, introduction: bytes, on_room: Callable[[], None], judge: CertificateCheck | None
    ) -> None:
        self._opening = Opening(FRAMES, introduction)
        self._stream = Stream(self._opening, self, OPENING_BYTES_MAX, judge)
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.room = on_room

    @property
    def writable(self) -> bool:
        return self._stream.writable

    def write(self, frames: Sequence[bytes]) -> None:
        self._stream.write(frames)

    async def open(self, address: str, context: ssl.SSLContext | None) -> None:
        try:
            await dial(address, context, lambda: self._stream)
            async with asyncio.timeout(ACCEPT_SECONDS):
                await self._accepted
        except BaseException:
            await self.close()
            raise

    async def until_ended(self) -> None:
        try:
            await self._ended
        except Turned as refusal:
            raise NoAnswer(str(refusal), refusal.code) from refusal
        except Exception as error:
            raise NoAnswer(str(error)) from error

    async def close(self) -> None:
        self._stream.close(abort=True)
        for future in (self._accepted, self._ended):
            if future.done() and not future.cancelled():
                future.exception()  # it was taken note of, or no task asks any more

    # --- events of the stream

    def accepted(self, answer: bytes) -> None:
        del answer
        if not self._accepted.done():
            self._accepted.set_result(None)

    def received(self, frame: bytes) -> None:
        """Take a refusal, which ends the stream."""
        self._stream.refused(frame)

    def ended(self, error: Exception) -> None:
        for future in (self._accepted, self._ended):
            if not future.done():
                future.set_exception(error)
