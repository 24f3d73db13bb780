"""Clients of tests by names, from which their secrets and ids are made."""

from __future__ import annotations

from postroom.protocol.frames import SECRET_BYTES, client_of


def secret_of(name: bytes) -> bytes:
    """Return the secret of the client with a name."""
    return name.ljust(SECRET_BYTES, b".")


def client_id(name: bytes) -> bytes:
    """Return the id of the client with a name, with which its transactions' ids begin."""
    return client_of(secret_of(name))
