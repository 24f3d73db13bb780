"""The native streams: frames over one TCP connection, with or without TLS.

::

    caller                                             callee
      preamble  "postroom/2\\n"  ─────────────────────▶
      Opening   purpose, and a token  ────────────────▶
                              ◀─────────────────────── preamble, and at once one of
                              ◀─────────────────────── Accepted   frames follow, both ways
                              ◀─────────────────────── Refusal    why not; then the end
      frame ··················▶ ◀····················· frame

Behind the preambles everything is a *frame*: its length in four bytes, big-endian, and that many
bytes. The contents of frames belong to :mod:`.frames` and to the nodes. Over TLS the name of
the protocol is agreed on by ALPN: a caller shows its token to nothing else.

Invariants:

* The caller sends nothing after its opening before it was accepted: if it is refused while more is
  on its way, TCP resets the connection, and the reason is lost.
* A length is checked before a byte behind it is kept.

Plain synchronous code; a shell moves the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec

from postroom.limits import CLIENT_NAME_CHARACTERS_MAX, OPENING_BYTES_MAX
from postroom.protocol.failures import WireError

STREAM_VERSION: Final = 2
"""The version of these streams."""
NAME: Final = b"postroom/"
PREAMBLE: Final = NAME + b"%d\n" % STREAM_VERSION
ALPN: Final = PREAMBLE[:-1].decode()
PREAMBLE_BYTES: Final = 16
LENGTH_BYTES: Final = 4

TALK: Final = "talk"
FRAMES: Final = "frames"
HELLO: Final = "hello"
ADMIT: Final = "admit"
PROVE: Final = "prove"
"""The purposes of a stream.

They are a client's requests, frames of consensus from another node, and the questions that nodes
ask each other, which ``Accepted`` answers.
"""

UNAVAILABLE: Final = "unavailable"
DENIED: Final = "denied"
REFUSED: Final = "refused"
MALFORMED: Final = "malformed"
"""The codes of a refusal: not now; not with these proofs; not from this one; not understood."""


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """The purpose of a stream.

    Attributes:
        method: one of the names above.
        argument: the argument of a question, or the node's identity; as bytes of its own.
        token: a client's, if it has one.
    """

    method: Annotated[str, msgspec.Meta(max_length=64)]
    argument: bytes = b""
    token: str | None = None

    def __repr__(self) -> str:
        return f"Opening({self.method!r}, {self.argument!r})"  # without the token


class OnBehalf(msgspec.Struct, frozen=True, array_like=True):
    """The client for which a gateway talks: the ``argument`` of the opening, if there is one.

    The requests of the stream need the rights of both. It is believed: it can only take rights.

    Attributes:
        name: the common name of its certificate.
        role: the name of its role, as the gateway knows it; empty: that of the gateway.
    """

    name: Annotated[str, msgspec.Meta(max_length=CLIENT_NAME_CHARACTERS_MAX)]
    role: Annotated[str, msgspec.Meta(max_length=16)] = ""


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The answer that the stream is open, or to the question."""

    answer: bytes = b""


class StreamRefusal(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The end of the stream, and why. Nodes are told so in the middle of a stream as well."""

    code: str
    reason: str


_encode: Final = msgspec.msgpack.Encoder().encode
_openings: Final = msgspec.msgpack.Decoder(Opening)
_replies: Final = msgspec.msgpack.Decoder(Accepted | StreamRefusal)


def length_bytes(frame: bytes) -> bytes:
    """Return the length that is sent before ``frame``."""
    return len(frame).to_bytes(LENGTH_BYTES, "big")


def framed(frame: bytes) -> bytes:
    """Return ``frame`` with its length, as it is sent."""
    return length_bytes(frame) + frame


def opening_bytes(opening: Opening) -> bytes:
    """Return the first bytes of the caller."""
    return PREAMBLE + framed(_encode(opening))


def reply_bytes(reply: Accepted | StreamRefusal, *, first: bool = True) -> bytes:
    """Return the first bytes of the callee, or a refusal in the middle of a stream."""
    return (PREAMBLE if first else b"") + framed(_encode(reply))


def read_opening(frame: bytes) -> Opening:
    """Decode the opening of a caller.

    Raises:
        WireError: the bytes are no opening.
    """
    opening: Opening = _decoded(_openings, frame)
    return opening


def read_reply(frame: bytes) -> Accepted | StreamRefusal:
    """Decode the reply of a callee.

    Raises:
        WireError: the bytes are no reply.
    """
    reply: Accepted | StreamRefusal = _decoded(_replies, frame)
    return reply


def _decoded(decoder: msgspec.msgpack.Decoder[Any], frame: bytes) -> Any:
    try:
        return decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a frame of this protocol: {error}") from error


class OtherVersion(WireError):
    """The error for another side that speaks another version of them."""


class Incoming:
    """The bytes that come in on a stream, cut into frames.

    Args:
        frame_bytes_max: the limit at the beginning.

    Attributes:
        frame_bytes_max: a longer frame is refused before it is read.
        greeted: whether the preamble has come.
        frames: how many were cut.
    """

    __slots__ = ("_data", "_gathered", "_start", "_wanted", "frame_bytes_max", "frames", "greeted")

    def __init__(self, frame_bytes_max: int = OPENING_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.greeted = False
        self.frames = 0
        self._data = b""
        self._start = 0
        self._gathered = bytearray()
        self._wanted = 0

    @property
    def unfinished_bytes(self) -> int:
        """Return the bytes received and not cut, mostly of a frame that is not whole."""
        return len(self._gathered) + len(self._data) - self._start

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the frames that are whole with ``data``, one after the other.

        ``frame_bytes_max`` may be changed between two of them.

        Raises:
            OtherVersion, WireError: as :meth:`cut`.
        """
        self.add(data)
        while (frame := self.cut()) is not None:
            yield frame

    def add(self, data: bytes) -> None:
        """Add bytes that have come in."""
        if self._start < len(self._data):  # not all of it was cut
            data = self._data[self._start :] + data
        elif self._gathered:
            self._gathered += data
            if len(self._gathered) < self._wanted:
                return
            data = bytes(self._gathered)
            self._gathered = bytearray()
        self._data, self._start = data, 0

    def cut(self) -> bytes | None:
        """Return the next frame, or ``None`` if it is not whole yet.

        Raises:
            OtherVersion: the preamble is one of another version.
            WireError: the first bytes are no preamble, or a frame is too long.
        """
        data = self._data
        if not self.greeted and data:
            self._start = self._greeted(data)
        start, end = self._start, len(data)
        if end - start < LENGTH_BYTES or not self.greeted:
            self._keep(start + LENGTH_BYTES if self.greeted else end + 1)
            return None
        body = start + LENGTH_BYTES
        size = int.from_bytes(data[start:body], "big")
        if size > self.frame_bytes_max:
            raise WireError(f"a frame of {size} bytes, the limit is {self.frame_bytes_max}")
        if end - body < size:
            self._keep(body + size)
            return None
        self.frames += 1
        self._start = body + size
        return data[body : self._start]

    def _greeted(self, data: bytes) -> int:
        """Check the preamble, and return where the frames begin."""
        end = data.find(b"\n", 0, PREAMBLE_BYTES) + 1
        if not data.startswith(NAME[: len(data)]) or (not end and len(data) >= PREAMBLE_BYTES):
            raise WireError("no native stream of Postroom")
        if end and data[:end] != PREAMBLE:
            said = data[len(NAME) : end - 1].decode("ascii", "replace")
            raise OtherVersion(
                f"version {said} of the streams, not {STREAM_VERSION}: use the same version of "
                "Postroom"
            )
        self.greeted = end > 0
        return end

    def _keep(self, until: int) -> None:
        """Keep the remaining bytes until there are as many as up to ``until``."""
        if self._start < len(self._data):
            self._gathered += memoryview(self._data)[self._start :]
            self._wanted = until - self._start
        self._data, self._start = b"", 0
