"""The recount of an image as its entries pass by: by table, against counters and indexes."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.kv import keys
from postroom.messaging.images import Counting
from postroom.messaging.ingest.requests import Counted


class Recount:
    """A recount of an image, whose parts come in order.

    The index of inboxes of a part comes before the inboxes. It is kept until the part ends.
    """

    def __init__(self) -> None:
        self._inboxes: dict[bytes, bytes] = {}
        self._counting = Counting(self._inboxes.get)

    def add(self, names: Sequence[bytes], stored: Sequence[bytes]) -> None:
        """Count more entries of a part."""
        if names[0][:1] == keys.MAIL:
            self._inboxes |= {
                name: value
                for name, value in zip(names, stored, strict=True)
                if name[:1] == keys.MAIL
            }
        self._counting.add_all(names, stored)

    def end_part(self) -> None:
        """End a part."""
        self._counting.end_inbox()
        self._inboxes.clear()

    def end(self) -> Counted:
        """Return the result."""
        return self._counting.end()
