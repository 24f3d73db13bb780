"""How fast, and how many at a time: what keeps a queue, or a group of it, from firing.

A rate is a *token bucket*: tokens come at the rate, a message takes one, and no more are saved up
than a tenth of a second's. A bucket begins empty, with each lease of the range too: whatever the
leader before has fired a moment ago, both together do not exceed the rate. Groups have buckets too.

How many are leased is stored with the leases, so ``max_concurrency`` needs no such care.
"""

from __future__ import annotations

from typing import Final

from postroom.limits import GROUP_BUCKETS_MAX

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

    def began_at(self, now: float) -> float:
        """When one must have begun that has as many tokens now, and never gave one away."""
        self._fill(now)
        return now - self._tokens / self._rate


class GroupBuckets:
    """A bucket for each group that was fired lately; of other groups nothing need be known.

    A group that has none gets one that began when these were begun. There is room for a number of
    them. When they are more, the fullest ones are forgotten, and from then on new ones begin no
    sooner than these have: so no group gets more than its rate, whatever is forgotten.

    Args:
        now: seconds of a monotonic clock.
    """

    def __init__(self, now: float) -> None:
        self._buckets: dict[str, TokenBucket] = {}
        self._began_at = now
        self._rate: float | None = None

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, group: str, rate: float, now: float) -> TokenBucket:
        """That of a group."""
        bucket = self._buckets.get(group)
        if bucket is None:
            if len(self._buckets) >= GROUP_BUCKETS_MAX:
                self._forget(now)
            self._buckets[group] = bucket = TokenBucket(rate, self._began_at)
            self._rate = rate
        return bucket

    def _forget(self, now: float) -> None:
        """An eighth of them, those that would have begun first."""
        oldest = sorted((each.began_at(now), group) for group, each in self._buckets.items())
        for began_at, group in oldest[: len(oldest) // 8 + 1]:
            del self._buckets[group]
            self._began_at = max(self._began_at, began_at)

    def take(self, group: str) -> None:
        """A message of a group is fired."""
        bucket = self._buckets.get(group)
        if bucket is not None:
            bucket.take()

    def change(self, rate: float | None, now: float) -> None:
        """The settings have changed. If that is another rate all begin now; else nothing is
        forgotten, or a queue that is changed again and again would never fire.
        """
        if rate != self._rate:
            self._buckets.clear()
            self._began_at, self._rate = now, rate
