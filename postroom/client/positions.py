"""Requests about named positions (:mod:`postroom.ranges.protections`), checked and sent.

Each of them may be repeated, and is, until the store answers (:mod:`postroom.client.chunks`).
"""

from __future__ import annotations

from typing import Any

from postroom.client.chunks import repeated
from postroom.client.commits import alone
from postroom.client.sender import Sender
from postroom.errors import Invalid
from postroom.limits import POSITION_NAME_CHARACTERS_MAX, POSITION_SECONDS_MAX
from postroom.ranges.protections import KeepPosition
from postroom.ranges.requests import Committed


async def keep(sender: Sender, name: Any, timestamp: int, seconds: Any) -> None:
    """Keep a position for ``seconds``.

    Raises:
        SnapshotTooOld, Invalid: it was not kept.
        CommitUnknown, Unavailable: it could not be done for a minute.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"seconds is a number, not {type(seconds).__name__}")
    if not 0 < seconds <= POSITION_SECONDS_MAX:
        raise Invalid(
            f"a position is kept for {POSITION_SECONDS_MAX:g} seconds (a week) at most, not "
            f"{seconds:g}; nothing was changed: keep it anew before its time is over"
        )
    await _send(sender, KeepPosition(_checked(name), timestamp, float(seconds)))


async def forget(sender: Sender, name: Any) -> bool:
    """Forget a position; return whether there was one.

    Raises:
        CommitUnknown, Unavailable: it could not be done for a minute.
    """
    return await _send(sender, KeepPosition(_checked(name), 0, 0.0))


async def _send(sender: Sender, request: KeepPosition) -> bool:
    reply: Committed = await repeated(sender, lambda: alone(sender, b"", request))
    return bool(reply.answers and reply.answers[0])


def _checked(name: Any) -> str:
    """Return the name of a position, which is text that can be stored."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a position is text, not {type(name).__name__}")
    if not 1 <= len(name) <= POSITION_NAME_CHARACTERS_MAX or not _is_encodable(name):
        raise Invalid(
            f"the name of a position has 1 to {POSITION_NAME_CHARACTERS_MAX} characters, and no "
            f"half of one; {name[:40]!r} has {len(name)}; nothing was changed: take another name"
        )
    return str(name)


def _is_encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


__all__ = ["forget", "keep"]
