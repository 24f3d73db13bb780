"""The applied record of a range: the one record that every entry of its log changes.

::

    03 <range> 05 "applied"  →  [index, term, last commit, sums]

The state machine (:mod:`.state`) writes it with each entry, with the index and the term of that.
The command of the entry brings the other two. The companion of a range keeps its sums in it,
packed: the counters of messages. A record of their own would be written with nearly every proposal.
"""

from __future__ import annotations

from typing import Final

import msgspec

from postroom.kv import keys
from postroom.kv.engine import Reader

APPLIED_RECORD: Final = "applied"


class AppliedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The progress of a range.

    Attributes:
        index, term: the last entry that is applied.
        last_commit: a timestamp that no commit in the state is above.
        sums: the sums of the companion, packed; empty: there are none.
    """

    index: int = 0
    term: int = 0
    last_commit: int = 0
    sums: bytes = b""


encode_applied: Final = msgspec.msgpack.Encoder().encode
decode_applied: Final = msgspec.msgpack.Decoder(AppliedRecord).decode


def read_applied(stored: Reader, range_id: int) -> AppliedRecord:
    """Return the applied record of a range, as ``stored`` has it; a new range has none.

    It is read past the cache of values, which does not hear of it.
    """
    key = keys.record_key(range_id, APPLIED_RECORD)
    for _, packed in stored.iterate(key, key + b"\x00"):
        return decode_applied(packed)
    return AppliedRecord()
