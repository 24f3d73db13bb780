"""The parameters of a request for a page, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

import postroom
from postroom.web.limits import ROWS_MAX

State = Literal["ready", "leased", "scheduled", "dead", "done", "archived"]
STATES: Final = get_args(State)


class BadRequest(Exception):
    """An error that tells the visitor which parameter is wrong."""


@dataclass(frozen=True)
class Asked:
    """The parameters of a page, by the names in its address.

    A key or an id comes as text (``key``) or in hexadecimal (``key_hex``).
    """

    given: Mapping[str, str]

    def text(self, name: str) -> str:
        """Return a text; empty if it is not given."""
        return self.given.get(name, "").strip()

    def raw(self, name: str) -> bytes:
        """Return bytes; empty if they are not given."""
        in_hex = self.given.get(f"{name}_hex")
        if in_hex is None:
            return self.given.get(name, "").encode()
        try:
            return bytes.fromhex(in_hex)
        except ValueError:
            raise BadRequest(f"{name}_hex is no hexadecimal number") from None

    def count(self, name: str = "limit", most: int = ROWS_MAX) -> int:
        """Return a number of rows, from 1 to ``most``."""
        text = self.text(name)
        if not text:
            return most
        if not text.isdecimal() or not 1 <= int(text[:9]) <= most:
            raise BadRequest(f"{name} is a number from 1 to {most}")
        return int(text)

    def timestamp(self, name: str = "at") -> postroom.Timestamp | None:
        """Return a timestamp, which comes as a number; ``None``: it is not given."""
        text = self.text(name)
        if not text:
            return None
        if not text.isdecimal() or not 0 < int(text[:20]) < 1 << 63:
            raise BadRequest(f"{name} is a timestamp, as a number")
        return postroom.Timestamp(int(text))

    def state(self) -> State | None:
        """Return a state of queue messages; ``None``: all that live."""
        text = self.text("state")
        if text and text not in STATES:
            raise BadRequest(f"state is one of {', '.join(STATES)}")
        return cast("State", text) if text else None
