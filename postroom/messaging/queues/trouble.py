"""What a queue suffers from: that its manager fails, how often, and why.

A queue whose step fails is set aside for a second, again and again, and the others go on. So it
must be seen elsewhere than in the log: in the status of the service, and in the numbers of the
queue. What has not failed for a minute is sound.
"""

from __future__ import annotations

from typing import Final

from postroom.limits import TROUBLE_CHARACTERS_MAX
from postroom.log_once import shown

SET_ASIDE_SECONDS: Final = 1.0
SOUND_SECONDS: Final = 60.0


class Trouble:
    """Of one queue.

    Attributes:
        until: it is left alone until then, on the monotonic clock.
    """

    __slots__ = ("_at", "_error", "_failures", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self._failures = 0
        self._error = ""
        self._at = 0.0

    def failed(self, error: BaseException, now: float) -> bool:
        """A step has failed; whether it was sound before."""
        was_sound = not self.failures(now)
        self._failures = 1 if was_sound else self._failures + 1
        self._error = shown(f"{type(error).__name__}: {error}", TROUBLE_CHARACTERS_MAX)
        self._at, self.until = now, now + SET_ASIDE_SECONDS
        return was_sound

    def failures(self, now: float) -> int:
        """How often it has failed since it was sound."""
        return self._failures if now - self._at < SOUND_SECONDS else 0

    def why(self, now: float) -> str:
        """Why it failed last; empty: it is sound."""
        return self._error if self.failures(now) else ""
