"""The calls to other nodes, by native streams, and the introduction of the node that calls.

::

    ask(address, HELLO)      one question, one answer
    open(address, ...)       a stream on which frames are sent, until it ends
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from postroom.client.remote.native import (
    CertificateCheck,
    NativeStream,
    StreamRefused,
    ask,
    dial,
    why_not_connected,
)
from postroom.errors import Error, Invalid
from postroom.limits import NODE_ANSWER_BYTES_MAX, OPENING_BYTES_MAX
from postroom.protocol.failures import WireError
from postroom.protocol.streams import DENIED, FRAMES, PROVE, REFUSED, UNAVAILABLE, Opening
from postroom.server.cluster.security import Security, fingerprint_of

# --- introductions --------------------------------------------------------------------------------


PROTOCOL_VERSION = 1
NodeNumber = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Introduction(msgspec.Struct, frozen=True, array_like=True):
    """The first message of a stream: its sender, the sender's address, and its receiver.

    Attributes:
        proof: proves that it has the state of the cluster (:func:`proof_of`); empty: there is no
            TLS.
    """

    version: int
    cluster_id: bytes
    sender: NodeNumber
    store_id: bytes
    address: str
    receiver: NodeNumber = 0
    proof: bytes = b""


class CallerRefused(Exception):
    """The refusal of a stream or a question; the message says why.

    Args:
        reason: for people.
        code: a code of :mod:`postroom.protocol.streams`.
    """

    def __init__(self, reason: str, code: str = REFUSED) -> None:
        super().__init__(reason)
        self.code = code


def proof_of(secret: bytes, said: Introduction, fingerprint: bytes) -> bytes:
    """Return the proof that only a node with the cluster's secret in its state can give.

    It is bound to the sender, the receiver, and the key of the stream on which it is sent. No other
    node that hears it can use it.
    """
    fields = (
        said.cluster_id, said.store_id, fingerprint,
        said.sender.to_bytes(8, "big"), said.receiver.to_bytes(8, "big"),
    )  # fmt: skip
    digest = hmac.new(secret, digestmod=hashlib.sha256)
    for field in fields:
        digest.update(len(field).to_bytes(4, "big") + field)
    return digest.digest()


encode = msgspec.msgpack.Encoder().encode
introductions = msgspec.msgpack.Decoder(Introduction)


# --- calls ----------------------------------------------------------------------------------------


ACCEPT_SECONDS: Final = 5.0

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


class Dialer:
    """The caller of other nodes; see the module.

    Args:
        security: the proofs that this node shows.
    """

    def __init__(self, security: Security) -> None:
        self._security = security

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
            method: ``HELLO``, ``PROVE`` or ``ADMIT``.
            argument: the argument of the question.
            seconds: how long to wait for the answer.
            check: checks the node's key; ``None``: any node may answer.

        Raises:
            NoAnswer: there is none.
        """
        opening, judge = Opening(method, argument), judging(check)
        try:
            async with asyncio.timeout(seconds):
                answer: bytes = await _told(
                    ask(address, self._context, opening, NODE_ANSWER_BYTES_MAX, judge)
                )
                return answer
        except TimeoutError:
            raise NoAnswer("no answer") from None

    async def open(
        self,
        address: str,
        introduction: bytes,
        on_room: Callable[[], None],
        check: KeyCheck | None = None,
    ) -> PeerStream:
        """Open a stream to the node at ``address``, which has accepted it.

        Args:
            address: the node's address.
            introduction: this node's description of itself.
            on_room: called when the stream takes frames again.
            check: as for :meth:`ask`.

        Raises:
            NoAnswer: the stream could not be opened.
        """
        stream = PeerStream(introduction, on_room, judging(check))
        await _told(stream.open(address, self._context))
        return stream

    async def prove(self, address: str, introduction: bytes) -> None:
        """Tell the node at ``address``, whatever its key, that this node has the state.

        Raises:
            NoAnswer: it does not listen.
        """
        await self.ask(address, PROVE, introduction, ACCEPT_SECONDS)

    @property
    def _context(self) -> ssl.SSLContext | None:
        return self._security.client_context


async def _told(conversation: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a conversation, or raise its failure as ``NoAnswer``."""
    try:
        return await conversation
    except StreamRefused as refusal:
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
    return next((words for phrase, words in _WORDS if phrase in said.lower()), said)


class PeerStream:
    """A stream to another node, and the :class:`.native.StreamEvents` of it."""

    def __init__(
        self, introduction: bytes, on_room: Callable[[], None], judge: CertificateCheck | None
    ) -> None:
        opening = Opening(FRAMES, introduction)
        self._stream = NativeStream(opening, self, OPENING_BYTES_MAX, judge)
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.room = on_room

    @property
    def writable(self) -> bool:
        """Return whether the other node takes more frames."""
        return self._stream.writable

    def write(self, frames: Sequence[bytes]) -> None:
        """Send frames, in order, while it is ``writable``."""
        self._stream.write(frames)

    async def open(self, address: str, context: ssl.SSLContext | None) -> None:
        """Open the stream, and wait until the other node has accepted it."""
        try:
            await dial(address, context, lambda: self._stream)
            async with asyncio.timeout(ACCEPT_SECONDS):
                await self._accepted
        except BaseException:
            self.close()
            raise

    async def until_ended(self) -> None:
        """Wait for its end.

        Raises:
            NoAnswer: it has ended.
        """
        try:
            await self._ended
        except StreamRefused as refusal:
            raise NoAnswer(str(refusal), refusal.code) from refusal
        except Exception as error:
            raise NoAnswer(str(error)) from error

    def close(self) -> None:
        """Close the stream."""
        self._stream.close(abort=True)
        for future in (self._accepted, self._ended):
            if future.done() and not future.cancelled():
                future.exception()  # it was taken note of, or no task asks any more

    # --- events of the stream

    def accepted(self, answer: bytes) -> None:
        """Note that the other node has accepted the stream."""
        del answer
        if not self._accepted.done():
            self._accepted.set_result(None)

    def received(self, frame: bytes) -> None:
        """Take a refusal, which ends the stream."""
        self._stream.refused(frame)

    def ended(self, error: Exception) -> None:
        """Note the end of the stream."""
        for future in (self._accepted, self._ended):
            if not future.done():
                future.set_exception(error)
