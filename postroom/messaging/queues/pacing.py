"""How fast, and how many at a time: what keeps a queue, or a group of it, from firing.

A rate is a *token bucket*: tokens come at the rate, a message takes one, and no more are saved up
than a tenth of a second's. A bucket begins empty, with each lease of the range too: whatever the
leader before has fired a moment ago, both together do not exceed the rate.

How many are leased is stored with the leases, so ``max_concurrency`` needs no such care.
"""

from __future__ import annotations

from typing import Final

BURST_SECONDS: Final = 0.1
"""Tokens of so much time are saved up, one at least."""


class TokenBucket:
    """See the module.

    Args:
        rate: tokens a second.
        now: seconds of a monotonic clock.
    """

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._burst = max(1.0, rate * BURST_SECONDS)
        self._tokens = 0.0
        self._at = now

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now

    def available(self, now: float) -> int:
        """How many may be taken."""
        self._fill(now)
        return int(self._tokens + 1e-9)

    def take(self) -> None:
        """One is taken; it was available."""
        self._tokens -= 1.0

    def next_at(self, now: float) -> float:
        """When the next one may be taken."""
        self._fill(now)
        return now + max(0.0, 1.0 - self._tokens) / self._rate

    def change(self, rate: float, now: float) -> None:
        """From now on another rate."""
        self._fill(now)
        self._rate = rate
        self._burst = max(1.0, rate * BURST_SECONDS)
        self._tokens = min(self._tokens, self._burst)

    def is_full(self, now: float) -> bool:
        """Whether it has saved up all it may: nothing is lost if it is made anew."""
        self._fill(now)
        return self._tokens >= self._burst
