"""The records of a split, and the state with which a right half begins.

::

    03 <left> 05 "split"           a split is prepared          →  [key, right id]
    03 <left> 05 "halved"          the last split, as applied   →  [descriptor of right, members]
    03 <root> 05 "last range id"   the last id that was given out

The consensus group of a right half begins after the entry ``FIRST_ENTRY``, which stands for the
split. A member without the state cannot be fed from the log, since there is no entry before it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from postroom.kv import keys
from postroom.kv.engine import ValueReader, WriteSet
from postroom.ranges import lease as leases
from postroom.ranges.descriptor import RangeDescriptor, descriptor_key, encode_descriptor
from postroom.ranges.lease import RangeLease
from postroom.ranges.state import APPLIED_RECORD, AppliedRecord, encode_applied

SPLIT_RECORD: Final = "split"
HALVED_RECORD: Final = "halved"
LAST_ID_RECORD: Final = "last range id"
COLLECTED_RECORD: Final = "collected"
FIRST_ENTRY: Final = (1, 1)
"""Index and term of the entry after which the log of a right half begins."""


class SplitRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The record of a split that is prepared.

    Attributes:
        key: the first key of the right half.
        right_id: the id of the right half.
    """

    key: bytes
    right_id: int


class HalvedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The record of the last split of a range.

    Attributes:
        right: the descriptor of the right half, as it began.
        members: the first voters of its consensus group.
    """

    right: RangeDescriptor
    members: tuple[int, ...]


encode: Final = msgspec.msgpack.Encoder().encode
_decode_split: Final = msgspec.msgpack.Decoder(SplitRecord).decode
decode_halved: Final = msgspec.msgpack.Decoder(HalvedRecord).decode


def split_key(range_id: int) -> bytes:
    """Return the engine key of the record of a split that is prepared."""
    return keys.record_key(range_id, SPLIT_RECORD)


def halved_key(range_id: int) -> bytes:
    """Return the engine key of the record of the last split of a range."""
    return keys.record_key(range_id, HALVED_RECORD)


def decode_split(stored: bytes | None) -> SplitRecord | None:
    """Return a stored record; ``None``: no split is prepared."""
    return None if stored is None else _decode_split(stored)


def last_range_id(stored: ValueReader, root_id: int) -> int:
    """Return the last id that was given out; the root itself has the first one."""
    last = stored.get(keys.record_key(root_id, LAST_ID_RECORD))
    return root_id if last is None else int.from_bytes(last, "big")


def beginning(
    right: RangeDescriptor, lease: RangeLease, timestamp: int, readable_from: int, sums: bytes
) -> WriteSet:
    """Return the records with which a right half begins.

    Args:
        right: its descriptor.
        lease: the lease of the range that splits. Its holder may follow itself without a wait.
            Every other node waits as after the holder's end.
        timestamp: the timestamp of the split, which no commit before it is above.
        readable_from: the timestamp from which on everything can be read.
        sums: the sums of the companion, packed.
    """
    range_id = right.range_id
    return {
        descriptor_key(range_id): encode_descriptor(right),
        keys.record_key(range_id, APPLIED_RECORD): encode_applied(
            AppliedRecord(*FIRST_ENTRY, timestamp, sums)
        ),
        keys.record_key(range_id, leases.LEASE_RECORD): leases.encode(lease),
        keys.record_key(range_id, COLLECTED_RECORD): keys.u64(readable_from),
    }
