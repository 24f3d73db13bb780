"""The records at the anchor of a commit over several ranges.

::

    04 <anchor> transaction           COMMIT record: timestamp, 00, ballot, answers
    03 range 0A <anchor> transaction  the spans that may not have heard of it

Both are written with the commit. The second one goes when all ranges have heard. Only then is the
COMMIT record listed as garbage. It therefore stays as long as anybody may ask for it, and then as
long as that of a commit in one range.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.ranges.transactions.requests import Ballot

Span: TypeAlias = tuple[bytes, bytes | None]

OF_SEVERAL: Final = b"\x00"
"""The byte that tells the COMMIT record of several ranges from that of one, whose answers follow.

A list of answers never begins with it in MessagePack.
"""


class DecidedCommit(msgspec.Struct, frozen=True, array_like=True):
    """The content of a COMMIT record of several ranges, behind its timestamp."""

    ballot: Ballot
    answers: list[Any]


class UnresolvedCommit(msgspec.Struct, frozen=True, array_like=True):
    """The spans that may not have heard of a commit."""

    ballot: Ballot
    timestamp: int
    spans: list[Span]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_decided: Final = msgspec.msgpack.Decoder(DecidedCommit).decode
decode_unresolved: Final = msgspec.msgpack.Decoder(UnresolvedCommit).decode


def commit_record(stamp: bytes, ballot: Ballot, answers: list[Any]) -> bytes:
    """Return the COMMIT record of several ranges."""
    return stamp + OF_SEVERAL + _encode(DecidedCommit(ballot, answers))


def unresolved_record(unresolved: UnresolvedCommit) -> bytes:
    """Return the record of the spans that have not heard."""
    return _encode(unresolved)


def is_of_several(record: bytes) -> bool:
    """Return whether a COMMIT record is that of several ranges."""
    return record[8:9] == OF_SEVERAL


def decided_in(record: bytes) -> DecidedCommit:
    """Return the content of a COMMIT record of several ranges."""
    return _decode_decided(memoryview(record)[9:])


def has_under_way(stored: Reader, range_id: int) -> bool:
    """Return whether a range has prepared a transaction, or has to tell others of a commit."""
    prefixes = keys.prepared_prefix(range_id), keys.unresolved_prefix(range_id)
    spans = [(prefix, keys.after_prefix(prefix)) for prefix in prefixes]
    return any(next(stored.iterate(*span), None) is not None for span in spans)


def name_of(record_key: bytes) -> bytes:
    """Return the name of a commit: the engine key of its COMMIT record without the first byte."""
    return record_key[1:]


def record_key_of(name: bytes) -> bytes:
    """Return the engine key of the COMMIT record of a name."""
    return keys.TRANSACTION + name
