"""The home of a message: the user key under which it lies, and whose range serves it.

::

    group ───────────── else ──▶ key ───────── else ──▶ id
    the group's bytes            as it was given        as it was given, or made up

Body and state lie under the home. All messages of a group have one home, so one range keeps their
order, counts them and knows when they are done. A message is unique by its kind and id. If its home
is not its id, a pointer under the id names the home.

In memory and in requests, the key of a message without a given one is its id.
"""

from __future__ import annotations


def home_of(key: bytes, group: str) -> bytes:
    """Return the home of a message.

    Args:
        key: the key of the message: its id, if none was given.
        group: its group; empty: none.
    """
    return group.encode() if group else key


def kept_key(key: bytes, id_: bytes, group: str) -> bytes | None:
    """Return the key that a body keeps, or `None` if the home or the id of its message tells it."""
    return key if group and key != id_ else None


def told_key(kept: bytes | None, home: bytes, id_: bytes, group: str) -> bytes:
    """Return the key of a message, from what its body keeps and where it lies."""
    if kept is None:
        return id_ if group else home
    return kept
