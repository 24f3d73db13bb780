"""Timestamps that are protected for a block, as a whole or not.

A store of one range is protected as a whole as it is now. Several ranges agree on a timestamp to
come (:mod:`postroom.ranges.whole_protections`), at which each takes its own snapshot.
"""

from __future__ import annotations

from typing import Final

from postroom.client.sender import Sender, post, present
from postroom.errors import Invalid, SnapshotTooOld, Unavailable
from postroom.kv.clock import from_milliseconds
from postroom.ranges.listing import ListRanges
from postroom.ranges.requests import Protect, Unprotect
from postroom.ranges.whole_protections import BeStill, ProtectWhole, ReleaseWhole

_AHEAD_MILLISECONDS: Final = (5, 20, 50, 100, 200, 400, 800, 1600)
"""The leads of the timestamps that are tried: a try is in vain if a range is busy all the time."""


async def protect_whole(sender: Sender) -> int:
    """Protect everything as it is at one timestamp; return that.

    Raises:
        Unavailable: too many timestamps are protected, or ranges are too busy; nothing is.
        Invalid: this client has as many of these as are left for others.
    """
    try:
        return int(await sender.send(Protect(whole=True)))
    except Invalid:
        if len(await sender.send(ListRanges(b"", None))) == 1:
            raise
    for ahead in _AHEAD_MILLISECONDS:
        at = await present(sender) + from_milliseconds(ahead)
        try:
            await sender.send(BeStill(at))
            await sender.send(ProtectWhole(at))
            return int(await sender.send(Protect(at)))
        except SnapshotTooOld:
            release_whole(sender, at)
        except BaseException:
            release_whole(sender, at)
            raise
    raise Unavailable(
        f"{len(_AHEAD_MILLISECONDS)} times a range had transactions under way when all ranges were "
        "to be protected as a whole; nothing was protected: try again when there are fewer"
    )


def release_whole(sender: Sender, at: int) -> None:
    """Give back what :func:`protect_whole` has protected."""
    post(sender, Unprotect(at))
    post(sender, ReleaseWhole(at))
