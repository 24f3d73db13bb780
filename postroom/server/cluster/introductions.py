"""The introductions of nodes that open a stream to another one, and the refusal of some."""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated

import msgspec

from postroom.protocol.streams import REFUSED

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
