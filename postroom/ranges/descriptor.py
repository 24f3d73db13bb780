"""The descriptor of a range: which keys it contains.

It is a record of the state of the range itself::

    03 <range> 05 "descriptor"  →  [range id, start, end, generation]

A range is the authority about itself. Its descriptor changes by an entry of its own log, like
everything else that it stores. Each change has the next *generation*. Two descriptors that have a
key in common are therefore ordered by their generations, and the later one is right.

A range that was never split has no such record. This is the first range of a store, which contains
every key. A replica of another range that has no record yet holds nothing: it contains no key until
a snapshot, or the split that makes it, brings the descriptor.

The members are those of its consensus group, which tells them by itself.
"""

from __future__ import annotations

from typing import Final

import msgspec

from postroom.kv import keys
from postroom.kv.engine import ValueReader

DESCRIPTOR_RECORD: Final = "descriptor"
FIRST_RANGE_ID: Final = 1
"""The id of the range with which a store begins."""
FIRST_GENERATION: Final = 1
"""The generation of a range that nothing has changed."""


class RangeDescriptor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The descriptor of a range.

    Attributes:
        range_id: the id of the range.
        start, end: the bounds of its keys; ``end=None`` is unbounded.
        generation: the number of its changes.
    """

    range_id: int
    start: bytes = b""
    end: bytes | None = None
    generation: int = FIRST_GENERATION


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(RangeDescriptor).decode


def descriptor_key(range_id: int) -> bytes:
    """Return the engine key of the descriptor of a range."""
    return keys.record_key(range_id, DESCRIPTOR_RECORD)


def encode_descriptor(descriptor: RangeDescriptor) -> bytes:
    """Return a descriptor as it is stored."""
    return _encode(descriptor)


def decode_descriptor(stored: bytes | None, range_id: int) -> RangeDescriptor:
    """Return a stored descriptor; ``None``: that of a range without a record."""
    if stored is not None:
        return _decode(stored)
    return RangeDescriptor(range_id, b"", None if range_id == FIRST_RANGE_ID else b"")


def read_descriptor(stored: ValueReader, range_id: int) -> RangeDescriptor:
    """Return the descriptor of a range, as ``stored`` has it."""
    return decode_descriptor(stored.get(descriptor_key(range_id)), range_id)
