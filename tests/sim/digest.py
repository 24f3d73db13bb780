"""A name for what has happened in a run: two runs that are alike have the same one.

An event is told by what it holds. No address of an object goes into it: that would be another one
in each run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec


def _told(part: object) -> str:
    """Return what stands for a part of an event that cannot be packed."""
    told = repr(part)
    assert " at 0x" not in told, f"{told} is told by its address"
    return told


_pack = msgspec.msgpack.Encoder(enc_hook=_told).encode


class Digest:
    """A digest of the events of a run."""

    def __init__(self) -> None:
        self._events = hashlib.blake2b(digest_size=16)

    def note(self, event: object) -> None:
        """Add an event."""
        self._events.update(_pack(event))

    def name(self, *contents: Iterable[tuple[Any, Any]]) -> str:
        """Return the name of all events, and of what disks hold at the end."""
        whole = self._events.copy()
        for content in contents:
            for pair in content:
                whole.update(_pack(pair))
        return whole.hexdigest()
