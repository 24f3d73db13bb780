"""The identity of a client: an id that others see, made from a secret that they do not see.

The ids of a client's transactions begin with its own id, and lists of dead letters and of scheduled
messages show them to every reader. An id by itself therefore proves nothing::

    secret: 32 random bytes ──▶ client: 8 bytes of its BLAKE2b hash
       told to nodes only          in each transaction's id, seen by others

A client's Hello has its secret, from which the node makes the id. A node needs to remember nothing
for that: any node recognises the client when it comes there for the first time. To find another
secret for the same id takes some 2^64 guesses.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Final, NamedTuple

from postroom.ranges.requests import CLIENT_ID_BYTES

SECRET_BYTES: Final = 32


class ClientIdentity(NamedTuple):
    """The id of a client, and the secret that it is made from."""

    client: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"Identity({self.client!r})"  # logs and errors may show it


def draw(randomness: Random) -> ClientIdentity:
    """Draw a new identity.

    Args:
        randomness: has a seed that no other process knows.
    """
    secret = randomness.randbytes(SECRET_BYTES)
    return ClientIdentity(client_of(secret), secret)


def client_of(secret: bytes) -> bytes:
    """Return the id that is made from a secret."""
    return blake2b(secret, digest_size=CLIENT_ID_BYTES, person=b"postroom client").digest()
