"""Who opens a stream from node to node, and what is said to those who may not."""

from __future__ import annotations

import msgspec

from postroom.protocol.streams import REFUSED

PROTOCOL_VERSION = 1


class Introduction(msgspec.Struct, frozen=True, array_like=True):
    """The first message of a stream: who sends, from where, and to whom."""

    version: int
    cluster_id: bytes
    sender: int
    store_id: bytes
    address: str
    receiver: int = 0


class Refused(Exception):
    """A stream or a question is not what it should be; the message says why.

    Args:
        reason: for people.
        code: of :mod:`postroom.protocol.streams`.
    """

    def __init__(self, reason: str, code: str = REFUSED) -> None:
        super().__init__(reason)
        self.code = code


encode = msgspec.msgpack.Encoder().encode
introductions = msgspec.msgpack.Decoder(Introduction)
