"""Who opens a stream from node to node, and what is said to those who may not."""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated

import msgspec

from postroom.protocol.streams import REFUSED

PROTOCOL_VERSION = 1
NodeNumber = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Introduction(msgspec.Struct, frozen=True, array_like=True):
    """The first message of a stream: who sends, from where, and to whom.

    Attributes:
        proof: that it has the state of the cluster (:func:`proof_of`); empty: there is no TLS.
    """

    version: int
    cluster_id: bytes
    sender: NodeNumber
    store_id: bytes
    address: str
    receiver: NodeNumber = 0
    proof: bytes = b""


class Refused(Exception):
    """A stream or a question is not what it should be; the message says why.

    Args:
        reason: for people.
        code: of :mod:`postroom.protocol.streams`.
    """

    def __init__(self, reason: str, code: str = REFUSED) -> None:
        super().__init__(reason)
        self.code = code


def proof_of(secret: bytes, said: Introduction, fingerprint: bytes) -> bytes:
    """What only a node can say whose state has the cluster's secret.

    It is bound to who says it to whom, and to the key of the stream on which it is said: nobody
    else can use it who has heard it.
    """
    parts = (
        said.cluster_id, said.store_id, fingerprint,
        said.sender.to_bytes(8, "big"), said.receiver.to_bytes(8, "big"),
    )  # fmt: skip
    digest = hmac.new(secret, digestmod=hashlib.sha256)
    for part in parts:
        digest.update(len(part).to_bytes(4, "big") + part)
    return digest.digest()


encode = msgspec.msgpack.Encoder().encode
introductions = msgspec.msgpack.Decoder(Introduction)
