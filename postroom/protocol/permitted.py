"""The requests that a client may ask for. Other requests are not decoded.

A request is an array that begins with its tag, and the tag tells the role that it needs. A client's
frames are read by decoders that know the requests of its role alone, and end at any other tag::

    frame ── Permitted.frame ──▶ Ask                       usually
               │ another request in it
               └─ decode_run ──▶ each request, or NotDecoded: denied
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, get_args, get_origin

import msgspec

from postroom.protocol.failures import Failure, WireError
from postroom.protocol.frames import Number, decoder_of
from postroom.protocol.requests import REQUESTS, any_of, name_of
from postroom.protocol.weights import weight_of
from postroom.ranges.contract import Request

Numbered: TypeAlias = tuple[int, Any, int]
"""A request: its number, itself, and its weight (:mod:`.weights`)."""


class NotDecoded(msgspec.Struct, frozen=True):
    """A stand-in for a request that is refused because of its size, or of the client's role.

    Attributes:
        failure: the failure that its client is told.
    """

    failure: Failure


class _Tagged(msgspec.Struct, frozen=True, array_like=True):
    """A request of which only the tag is decoded."""

    tag: str


_TAGS: Final[dict[str, Any]] = {
    name_of(get_origin(each) or each): each for each in get_args(REQUESTS.request)
}
_decode_tagged: Final = msgspec.msgpack.Decoder(tuple[Number, _Tagged]).decode
decode_number: Final = msgspec.msgpack.Decoder(Number).decode


class Permitted:
    """The permitted requests of one role; see the module.

    Args:
        kinds: the types of requests.
        denied: returns the failure for another type.

    Attributes:
        frame: decodes frames that have only permitted requests.
    """

    def __init__(
        self, kinds: frozenset[type[Request]], denied: Callable[[type[Request]], Failure]
    ) -> None:
        self._denied = {
            tag: denied(get_origin(each) or each)
            for tag, each in _TAGS.items()
            if (get_origin(each) or each) not in kinds
        }
        union: Any = any_of(each for tag, each in _TAGS.items() if tag not in self._denied)
        pair: Any = tuple[Number, union]
        self.frame = decoder_of(union)
        self._decode_list = msgspec.msgpack.Decoder(list[pair]).decode
        self._decode_pair = msgspec.msgpack.Decoder(pair).decode

    def denied(self, tag: str) -> Failure | None:
        """Return why the client may not ask for this, or ``None`` if it may."""
        return self._denied.get(tag)

    def decode_run(self, count: int, packed: memoryview) -> list[Numbered]:
        """Decode ``count`` requests, one after the other, and small all together.

        Raises:
            MsgspecError: one of them is malformed.
        """
        share = len(packed) // count
        try:
            pairs = self._decode_list(b"".join((array_header(count), packed)))
        except msgspec.ValidationError:
            raws = _decode_raws(b"".join((array_header(count), packed)))
            return [self._decode_one(bytes(raw), share) for raw in raws]
        return [(number, request, share + weight_of(request)) for number, request in pairs]

    def _decode_one(self, pair: bytes, share: int) -> Numbered:
        number, request = _decode_tagged(pair)
        failure = self.denied(request.tag)
        if failure is not None:
            return number, NotDecoded(failure), share
        if request.tag not in _TAGS:
            raise WireError("not a frame of this protocol: nothing that can be asked")
        number, decoded = self._decode_pair(pair)
        return number, decoded, share + weight_of(decoded)


def array_header(length: int) -> bytes:
    """Return the header of an array, in MessagePack."""
    if length < 1 << 4:
        return bytes([0x90 | length])
    if length < 1 << 16:
        return b"\xdc" + length.to_bytes(2, "big")
    return b"\xdd" + length.to_bytes(4, "big")


_decode_raws: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
