"""The ids that a client makes up for messages, each in the range of a key.

::

    the message has a group or a key          its pointer lies in the range of the message
    it has none, the transaction writes keys  it lies in the range of the first of them

A message whose id, or home, lies elsewhere takes a further step between ranges. An id therefore
gets the shortest beginning that leads into the range of a key. If the client is wrong about ranges,
or knows of one only, the message takes that step.
"""

from __future__ import annotations

from collections.abc import Iterator

from postroom.client.sender import Sender
from postroom.limits import QUEUE_ID_BYTES_MAX

_LAST_BYTE = 0xFF


def near_to(sender: Sender, near: bytes | None, id_: bytes) -> bytes:
    """Return a made-up id, with a beginning that leads into the range of a key if that is known.

    Args:
        sender: the client's sender.
        near: the key; ``None``: the id may lie anywhere.
        id_: the id.
    """
    span = None if near is None else sender.span_of(near)
    return id_ if span is None else id_within(id_, *span)


def id_within(id_: bytes, start: bytes, end: bytes | None) -> bytes:
    """Return an id with the shortest beginning that leads into a span; as it is if none does."""
    for beginning in _beginnings(start):
        led = beginning + id_
        if start <= led and (end is None or led < end) and len(led) <= QUEUE_ID_BYTES_MAX:
            return led
    return id_


def _beginnings(start: bytes) -> Iterator[bytes]:
    """Iterate over beginnings of keys at or above a first one, short ones first."""
    yield b""
    for length in range(1, len(start) + 1):
        if start[length - 1] < _LAST_BYTE:
            yield start[: length - 1] + bytes((start[length - 1] + 1,))
    yield start
    yield start + b"\x00"
