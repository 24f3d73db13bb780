"""The identity of a client: an id that others see, made from a secret that they do not see.

The ids of a client's transactions begin with its own id, and lists of dead letters and of scheduled
messages show them to every reader. An id by itself therefore proves nothing::

    secret: 32 random bytes ──▶ client: 8 bytes of its BLAKE2b hash, the first bit set
       told to nodes only          in each transaction's id, seen by others

With its Hello a client shows its secret. A node needs to remember nothing to check it: any node
recognises the client when it comes there for the first time. To find another secret for the
same id takes some 2^63 attempts.

Clients of the first release have no secret: they draw 8 bytes, and count their transactions.
They may use any id but one that looks like that of a client with a secret: its first bit set, and
the first bit of the number behind the 8 bytes, which they count up from 1.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Final, NamedTuple

from postroom.protocol.failures import WireError
from postroom.ranges.requests import CLIENT_ID_BYTES

SECRET_BYTES: Final = 32
_FIRST_BIT: Final = 0x80
FIRST_NUMBER: Final = (1 << 63) + 1
"""The first number of the transactions of a client with a secret."""


class Identity(NamedTuple):
    """The id of a client, and the secret that it is made from (empty: it has none)."""

    client: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"Identity({self.client!r})"  # logs and errors may show it


def draw(randomness: Random) -> Identity:
    """Draw a new identity.

    Args:
        randomness: has a seed that no other process knows.
    """
    secret = randomness.randbytes(SECRET_BYTES)
    return Identity(client_of(secret), secret)


def client_of(secret: bytes) -> bytes:
    """Return the id that is made from a secret."""
    digest = blake2b(secret, digest_size=CLIENT_ID_BYTES, person=b"postroom client").digest()
    return bytes([digest[0] | _FIRST_BIT]) + digest[1:]


def has_secret(client: bytes) -> bool:
    """Return whether an id looks like one that is made from a secret."""
    return client[0] >= _FIRST_BIT


def is_proven(client: bytes, secret: bytes, *, names_its_own: bool) -> bool:
    """Return whether a client has proved its id by showing the secret.

    Raises:
        WireError: it shows another secret, or none for an id that is made from one.
    """
    may_be_anothers = names_its_own and has_secret(client)
    if client_of(secret) != client if secret else may_be_anothers:
        raise WireError("this is not the secret of this client")
    return bool(secret)


def is_of_client_with_secret(name: bytes) -> bool:
    """Return whether the id of a transaction looks like that of a client with a secret."""
    return name[0] >= _FIRST_BIT and name[CLIENT_ID_BYTES] >= _FIRST_BIT
