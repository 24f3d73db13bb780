"""The positions of outgoing entries: their order in an outbox, and in the marks of receivers.

::

    when sent sender ordinal        8, 8, 8 and 4 bytes
         └────── id ───────┘

``when`` is the timestamp of the proposal that made the entry outgoing. It need not be that of the
commit, ``sent``: an entry may have waited for its time, or may be a dead letter that was replayed.

Invariant: the positions that a range gives only rise, over proposals and over leaseholders, as its
timestamps do. Within a proposal, they are in the order of the commits. A later entry of an outbox
therefore lies above everything that was handed over before.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

WHEN_BYTES: Final = 8
POSITION_BYTES: Final = 28

Position: TypeAlias = Annotated[
    bytes, msgspec.Meta(min_length=POSITION_BYTES, max_length=POSITION_BYTES)
]


def position_of(stamp: bytes, id_: bytes) -> bytes:
    """Return the position of an entry that becomes outgoing at a timestamp (8 bytes)."""
    return stamp + id_


def id_in(position: bytes) -> bytes:
    """Return the id of the message or update at a position."""
    return position[WHEN_BYTES:]
