"""The failures of a queue's manager: how often it fails, and why.

A queue whose step fails is set aside for a second, again and again, and the others go on. Therefore
it is reported in the status of the service and in the statistics of the queue, not only in the log.
A queue that has not failed for a minute is sound.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from postroom.limits import TROUBLE_CHARACTERS_MAX
from postroom.log_once import shown

SET_ASIDE_SECONDS: Final = 1.0
SOUND_SECONDS: Final = 60.0


class Trouble:
    """The failures of one queue.

    Attributes:
        until: the moment of the monotonic clock until which it is set aside.
    """

    __slots__ = ("_at", "_error", "_failures", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self._failures = 0
        self._error = ""
        self._at = 0.0

    def failed(self, error: BaseException, now: float) -> bool:
        """Note that a step has failed; return whether the queue was sound before."""
        was_sound = not self.failures(now)
        self._failures = 1 if was_sound else self._failures + 1
        self._error = shown(f"{type(error).__name__}: {error}", TROUBLE_CHARACTERS_MAX)
        self._at, self.until = now, now + SET_ASIDE_SECONDS
        return was_sound

    def failures(self, now: float) -> int:
        """Return how often it has failed since it was sound."""
        return self._failures if now - self._at < SOUND_SECONDS else 0

    def why(self, now: float) -> str:
        """Return why it failed last; empty: it is sound."""
        return self._error if self.failures(now) else ""


class Troubles:
    """The failures of the queues of a range that are not sound, by name."""

    def __init__(self) -> None:
        self._of: dict[str, Trouble] = {}

    def add(self, queue: str, trouble: Trouble) -> None:
        """Add a queue that has failed."""
        self._of[queue] = trouble

    def clear(self) -> None:
        """Forget all queues."""
        self._of.clear()

    def told(self, damaged: Iterable[str], now: float) -> tuple[int, str]:
        """Return how often queues have failed, and why the first of them has.

        Args:
            damaged: descriptions of the queues that are set aside as damaged: each is one failure.
            now: seconds of the monotonic clock.
        """
        said = list(damaged)
        failures = len(said)
        for queue, trouble in list(self._of.items()):
            if not trouble.failures(now):
                del self._of[queue]
                continue
            failures += trouble.failures(now)
            said.append(f"queue {queue!r}: {trouble.why(now)}")
        if not said:
            return 0, ""
        more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
        return failures, said[0] + more
