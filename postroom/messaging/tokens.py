"""The tokens that requests about messages wait for (see ``MustWait``)."""

from __future__ import annotations

from typing import Final

import msgspec


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """The event that a message arrives at, or becomes free in, the inbox of ``key``."""

    key: bytes


QUIET: Final = "no outbox entry is due"
