"""Lines of the log whose number and contents are decided by somebody else.

* *Number*: a repeated event is logged once, when it begins. New events get no more than a few lines
  in ten seconds: a peer that varies its behaviour must not fill the disk.
* *Contents*: text from elsewhere is shortened and escaped. A line break would forge a line of the
  log, and ESC would command the terminal that shows it.

Plain synchronous code; the time is passed in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final

from postroom.counted import counted

QUIET_SECONDS: Final = 30.0
"""The time without an event after which the event is over."""
KNOWN_AT_ONCE: Final = 1000
BURST_SECONDS: Final = 10.0
BURST_LINES: Final = 20
SHOWN_CHARACTERS: Final = 200
SAY_SECONDS_MIN: Final = 0.25
LONGEST_SILENCE_SECONDS: Final = 30.0
"""The longest time between a line and the next one that differs."""


def shown(text: object, length_max: int = SHOWN_CHARACTERS) -> str:
    """Return text from elsewhere for a log or an error: on one line, and short.

    Args:
        text: anything; of bytes, what they look like.
        length_max: in characters, before escaping.
    """
    whole = text if isinstance(text, str) else _short_text(text, length_max)
    cut = whole[:length_max]
    if not cut.isprintable():
        cut = "".join(each if each.isprintable() else _escaped(each) for each in cut)
    return cut if len(whole) <= length_max else f"{cut}... ({len(whole)} characters)"


def _short_text(value: object, length_max: int) -> str:
    """Return a value as text, without spelling out all of large bytes."""
    return repr(value[: length_max + 1]) if isinstance(value, bytes) else str(value)


def _short(what: Hashable) -> Hashable:
    """Return a name that takes no more memory than it is worth, whoever chose it."""
    if isinstance(what, tuple):
        return tuple(map(_short, what))
    return what[:SHOWN_CHARACTERS] if isinstance(what, str | bytes) else what


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


class LogOnce:
    """A memory of recent events.

    Args:
        lines_max: how many lines of it are written within ``BURST_SECONDS``.
    """

    def __init__(self, lines_max: int = BURST_LINES) -> None:
        self._last: dict[Hashable, float] = {}
        self._lines_max = lines_max
        self._burst_began = float("-inf")
        self._lines = 0
        self._left_out = 0

    def begins(self, what: Hashable, now: float) -> bool:
        """Note that ``what`` has happened; return whether that is the first time for a while.

        Args:
            what: names it.
            now: seconds that never go back.
        """
        what = _short(what)
        last = self._last.pop(what, None)
        self._last[what] = now
        if len(self._last) > KNOWN_AT_ONCE:
            del self._last[next(iter(self._last))]
        return last is None or now - last > QUIET_SECONDS

    def log(
        self, logger: logging.Logger, what: Hashable, now: float, message: str, *arguments: object
    ) -> None:
        """Write a warning when ``what`` begins, else a line of debugging.

        Args:
            logger: where to.
            what: names it.
            now: seconds that never go back.
            message, arguments: as for ``logger.warning``; text among them is made harmless.
        """
        if not self.begins(what, now) or not self._has_lines_left(logger, now):
            if not logger.isEnabledFor(logging.DEBUG):
                return
            level = logging.DEBUG
        else:
            level = logging.WARNING
        harmless = [
            each if isinstance(each, int | float) else shown(each) for each in arguments
        ]  # fmt: skip
        logger.log(level, message, *harmless)

    def _has_lines_left(self, logger: logging.Logger, now: float) -> bool:
        if now - self._burst_began > BURST_SECONDS:
            if self._left_out:
                left_out = counted(self._left_out, "more line")
                logger.warning("%s of this kind left out", left_out)
            self._burst_began, self._lines, self._left_out = now, 0, 0
        if self._lines >= self._lines_max:
            self._left_out += 1
            return False
        self._lines += 1
        return True


class LogChanges:
    """The last line that was logged, to log it once, and again when it changes.

    A line that keeps changing is logged less and less often. An example is the error of a name with
    two addresses.

    Args:
        monotonic: seconds that never go back.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last = ""
        self._pause = SAY_SECONDS_MIN
        self._quiet_until = monotonic()

    def is_news(self, line: str) -> bool:
        """Return whether to log ``line``."""
        now = self._monotonic()
        if line == self._last or now < self._quiet_until:
            return False
        self._last = line
        self._quiet_until = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_SILENCE_SECONDS)
        return True
