"""The contents of the pages: coroutines that read the store, and return plain JSON.

A coroutine takes a :class:`PageReader` and returns a dictionary of texts, numbers, lists and
dictionaries. The page shows it, and the same path under ``/api`` returns it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from postroom.web.asked import Asked
from postroom.web.history import History
from postroom.web.store import OpenStore
from postroom.web.texts import payload_of

HIDDEN = {"form": "hidden", "text": "", "cut": False}


@dataclass(frozen=True)
class PageReader:
    """The store as one visitor, who asks for a page, may see it.

    Attributes:
        store: the store.
        asked: the parameters of the page.
        history: the points of the charts.
        shows_payloads: whether this visitor may see values and payloads.
    """

    store: OpenStore
    asked: Asked
    history: History
    shows_payloads: bool

    def payload(self, raw: bytes | None, key: bytes) -> dict[str, Any] | None:
        """Return a value or payload for this visitor; one who may not see it gets its size."""
        if raw is None or self.shows_payloads:
            return payload_of(self.store.codec, raw, key)
        return HIDDEN | {"bytes": len(raw)}

    def headers(self, headers: dict[str, Any]) -> dict[str, str]:
        """Return the headers of a message for this visitor: names, and values that may be seen."""
        return {
            str(name): str(value) if self.shows_payloads else "hidden"
            for name, value in headers.items()
        }
