"""The rates that limit how fast a queue, or a group of it, fires.

A rate is a *token bucket*: tokens come at the rate, and a message takes one. A bucket saves up the
tokens of a tenth of a second at most. It begins empty, with each lease of the range too. Thus the
leader before and this one together do not exceed the rate. Groups have buckets too.

The number of leases is stored, so ``max_concurrency`` needs no such care.
"""

from __future__ import annotations

from typing import Final

from postroom.limits import GROUP_BUCKETS_MAX

BURST_SECONDS: Final = 0.1
"""The time whose tokens are saved up, one token at least."""


class TokenBucket:
    """A token bucket.

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
        """Return how many tokens may be taken."""
        self._fill(now)
        return int(self._tokens + 1e-9)

    def take(self) -> None:
        """Take one token, which must be available."""
        self._tokens -= 1.0

    def next_at(self, now: float) -> float:
        """Return when the next token may be taken."""
        self._fill(now)
        return now + max(0.0, 1.0 - self._tokens) / self._rate

    def change(self, rate: float, now: float) -> None:
        """Change the rate from now on."""
        self._fill(now)
        self._rate = rate
        self._burst = max(1.0, rate * BURST_SECONDS)
        self._tokens = min(self._tokens, self._burst)

    def began_at(self, now: float) -> float:
        """Return when a bucket with as many tokens began, if it never gave one away."""
        self._fill(now)
        return now - self._tokens / self._rate


class GroupBuckets:
    """The buckets of the groups that were fired lately.

    A group without a bucket gets one that began when these buckets did. Their number has a limit.
    Above it the fullest ones are forgotten, and new ones then begin no sooner than those would
    have. Thus no group gets more than its rate.

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
        """Return the bucket of a group."""
        bucket = self._buckets.get(group)
        if bucket is None:
            if len(self._buckets) >= GROUP_BUCKETS_MAX:
                self._forget(now)
            self._buckets[group] = bucket = TokenBucket(rate, self._began_at)
            self._rate = rate
        return bucket

    def _forget(self, now: float) -> None:
        """Forget an eighth of the buckets, those that would have begun first."""
        oldest = sorted((each.began_at(now), group) for group, each in self._buckets.items())
        for began_at, group in oldest[: len(oldest) // 8 + 1]:
            del self._buckets[group]
            self._began_at = max(self._began_at, began_at)

    def take(self, group: str) -> None:
        """Take a token from the bucket of a group, if it has one."""
        bucket = self._buckets.get(group)
        if bucket is not None:
            bucket.take()

    def change(self, rate: float | None, now: float) -> None:
        """Change the rate; if it is another one, all buckets begin now.

        If it is the same, nothing is forgotten: a queue that is updated often would never fire
        otherwise.
        """
        if rate != self._rate:
            self._buckets.clear()
            self._began_at, self._rate = now, rate
