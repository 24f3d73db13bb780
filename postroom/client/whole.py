"""Timestamps that are protected for a block, as a whole or not.

A store of one range is protected as a whole as it is now. Several ranges agree on a timestamp to
come (:mod:`postroom.ranges.whole_protections`), at which each takes its own snapshot.
"""

from __future__ import annotations

from typing import Final

from postroom.client.sender import Sender, post, present
from postroom.errors import Invalid, SnapshotTooOld, Unavailable
from postroom.kv.clock import from_seconds
from postroom.limits import WHOLE_AHEAD_SECONDS_MAX
from postroom.ranges.listing import ListRanges
from postroom.ranges.requests import Protect, Unprotect
from postroom.ranges.whole_protections import BeStill, ProtectWhole, ReleaseWhole

_TRIES: Final = 20
_ROUNDS: Final = 6
"""The rounds to the ranges that a try takes, about, until all of them are protected."""
_AHEAD_SECONDS_MIN: Final = 0.005


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
    for number in range(_TRIES):
        at, ahead, comes_at = await _still(sender, number)
        try:
            # Clocks of ranges have to move ahead by less later. Busy ranges need more time.
            await _rest_until(sender, comes_at - max(_left(ahead, number), _AHEAD_SECONDS_MIN))
            await sender.send(ProtectWhole(at))
            return int(await sender.send(Protect(at)))
        except SnapshotTooOld:
            release_whole(sender, at)
            await _rest_until(sender, comes_at + ahead)  # commits have waited, and go on now
        except BaseException:
            release_whole(sender, at)
            raise
    raise Unavailable(
        f"{_TRIES} times a range had transactions under way when all ranges were "
        "to be protected as a whole; nothing was protected: try again when there are fewer"
    )


def _left(ahead: float, number: int) -> float:
    """Return how long before its timestamp a try asks the ranges to protect it, in seconds."""
    return ahead * (number + 1) / (number + 3)


async def _still(sender: Sender, number: int) -> tuple[int, float, float]:
    """Let all ranges be still before a timestamp, when it is not the turn of commits.

    Args:
        sender: the client's sender.
        number: the number of times that it was not enough.

    Returns:
        The timestamp, how far it was ahead, and when it comes on the monotonic clock.
    """
    give_up = sender.monotonic() + 2 * WHOLE_AHEAD_SECONDS_MAX
    while True:
        began = sender.monotonic()
        now = await present(sender)
        rounds = max(_ROUNDS * (sender.monotonic() - began), _AHEAD_SECONDS_MIN)
        ahead = min(rounds * 2**number, WHOLE_AHEAD_SECONDS_MAX / 2)
        at, comes_at = now + from_seconds(ahead), sender.monotonic() + ahead
        try:
            await sender.send(BeStill(at))
        except SnapshotTooOld:
            if sender.monotonic() > give_up:
                raise Unavailable(
                    "others protect everything all the time; nothing was protected: try again"
                ) from None
            await _rest_until(sender, comes_at + ahead)  # ranges may be still until then
        else:
            return at, ahead, comes_at


async def _rest_until(sender: Sender, when: float) -> None:
    """Rest until a time on the monotonic clock."""
    seconds = when - sender.monotonic()
    if seconds > 0:
        await sender.sleep(seconds)


def release_whole(sender: Sender, at: int) -> None:
    """Give back what :func:`protect_whole` has protected."""
    post(sender, Unprotect(at))
    post(sender, ReleaseWhole(at))
