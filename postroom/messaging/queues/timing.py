"""The times of queues: when one is due, how fast it fires, and how long it rests after a failure.

The plan of what is due in each queue::

    memory of a queue changes ─▶ plan ─▶ by timestamps       a 12:00 · c 12:05
                                         by the wall clock   d 12:01
                                         by monotonic time   b 4.1 s · a 30 s      ─ due ─▶ a step
                                         polls               a 29 s

A queue is planned by its name, so nothing of it need be in memory while it waits. A plan may be too
early: then the queue is looked at in vain, and planned anew. It is never too late. A queue stays
due until the step that does its work is applied, since a step may come to nothing. Queues that are
due take turns. Queues that have nothing to do cost nothing in a turn.

The rate of a queue, or of a group of it, is a *token bucket*: tokens come at the rate, and a
message takes one. A bucket saves up the tokens of a tenth of a second at most. It begins empty,
with each lease of the range too. Thus the leader before and this one together do not exceed the
rate. The number of leases is stored, so ``max_concurrency`` needs no such care.

A queue whose step fails is set aside for a second, again and again, and the others go on. Therefore
it is reported in the status of the service and in the statistics of the queue, not only in the log.
A queue that has not failed for a minute is sound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from postroom.kv.clock import seconds_until
from postroom.limits import GROUP_BUCKETS_MAX, TROUBLE_CHARACTERS_MAX
from postroom.log_once import shown
from postroom.ranges.waiting import Deadlines

LOOK_SECONDS: Final = 1.0
"""The time within which a change of the wall clock must be noticed."""


class Agenda:
    """The plan of the queues of a range.

    Args:
        monotonic: the seconds of a clock that never goes back.
        reading: about now, as a timestamp.
        by_wall: the same by the trusted wall clock. It may be set, so queues that wait for it are
            looked at every second.
        until: how long it takes until a timestamp has come.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        reading: Callable[[], int],
        by_wall: Callable[[], int],
        until: Callable[[int], float],
    ) -> None:
        self._until = until
        self._monotonic = monotonic
        self._reading = reading
        self._wall = by_wall
        self._by_timestamp: Deadlines[str] = Deadlines()
        self._by_wall: Deadlines[str] = Deadlines()
        self._by_time: Deadlines[str] = Deadlines()
        self._polls: Deadlines[str] = Deadlines()
        self._due: dict[str, None] = {}

    def clear(self) -> None:
        """Forget all queues."""
        for each in (self._by_timestamp, self._by_wall, self._by_time, self._polls):
            each.clear()
        self._due.clear()

    def begin(self, by_timestamp: Mapping[str, int], by_wall: Mapping[str, int]) -> None:
        """Plan queues by the stored state, when nothing is planned yet.

        Args:
            by_timestamp: the timestamp at which something is due, by name.
            by_wall: the same by the wall clock.
        """
        self._by_timestamp.begin(by_timestamp)
        self._by_wall.begin(by_wall)

    def plan(
        self,
        name: str,
        *,
        by_timestamp: int = 0,
        by_wall: int = 0,
        by_time: float | None = None,
        poll: float | None = None,
    ) -> None:
        """Plan a queue anew; without deadlines, plan nothing for it.

        Args:
            name: the name of the queue.
            by_timestamp: the timestamp at which something is due; 0: nothing is.
            by_wall: the same by the wall clock.
            by_time: the same on the monotonic clock; ``None``: nothing is.
            poll: when to poll it, on that clock; ``None``: never.
        """
        self._due.pop(name, None)
        _set(self._by_timestamp, name, by_timestamp or None)
        _set(self._by_wall, name, by_wall or None)
        _set(self._by_time, name, by_time)
        _set(self._polls, name, poll)

    def by(self, name: str, deadline: float) -> None:
        """Plan a queue for a deadline on the monotonic clock, if not for an earlier one."""
        known = self._by_time.of(name)
        if known is None or deadline < known:
            self._by_time.set(name, deadline)

    def due(self) -> Iterable[str]:
        """Return the queues in which something is due, the one whose turn it is first."""
        now, reading = self._monotonic(), self._reading()
        self._due |= dict.fromkeys(self._by_time.take_due(now))
        self._due |= dict.fromkeys(self._by_timestamp.take_due(reading))
        self._due |= dict.fromkeys(self._by_wall.take_due(self._wall()))
        return self._due

    def move_back(self, name: str) -> None:
        """Let the other queues that are due come before this one next time."""
        if name in self._due:
            del self._due[name]
            self._due[name] = None

    def has_poll(self, name: str) -> bool:
        """Return whether a poll of a queue is planned."""
        return self._polls.of(name) is not None

    def polls(self) -> Iterator[str]:
        """Return the queues to poll now; they are planned anew afterwards."""
        return iter(self._polls.take_due(self._monotonic()))

    def deadlines(self) -> Iterator[float]:
        """Return when the first queues will be due, or polled, on the monotonic clock."""
        now = self._monotonic()
        if self._due:
            yield now
        timestamp, moment = self._by_timestamp.first(), self._by_wall.first()
        if timestamp is not None:
            yield now + self._until(int(timestamp))
        if moment is not None:
            yield now + min(seconds_until(int(moment), self._wall()), LOOK_SECONDS)
        for first in (self._by_time.first(), self._polls.first()):
            if first is not None:
                yield first


def _set(deadlines: Deadlines[str], name: str, deadline: float | None) -> None:
    if deadline is None:
        deadlines.cancel(name)
    elif deadlines.of(name) != deadline:
        deadlines.set(name, deadline)


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
        return max(int(self._tokens + 1e-9), 0)

    def has_any(self, now: float) -> bool:
        """Return whether a token may be taken."""
        return self.available(now) > 0

    def owe(self, tokens: int, now: float) -> None:
        """Leave out tokens: they may have been taken from other buckets just before."""
        self._fill(now)
        self._tokens -= tokens

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


SET_ASIDE_SECONDS: Final = 1.0
SOUND_SECONDS: Final = 60.0


class Trouble:
    """The failures of one queue.

    Attributes:
        until: the time on the monotonic clock until which it is set aside.
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


def told_troubles(
    damaged: Iterable[str], troubles: dict[str, Trouble], now: float
) -> tuple[int, str]:
    """Return how often queues have failed, and why the first of them has; forget sound ones.

    Args:
        damaged: descriptions of the queues that are set aside as damaged: each is one failure.
        troubles: the failures of queues, by name.
        now: seconds of the monotonic clock.
    """
    said = list(damaged)
    failures = len(said)
    for queue, trouble in list(troubles.items()):
        if not trouble.failures(now):
            del troubles[queue]
            continue
        failures += trouble.failures(now)
        said.append(f"queue {queue!r}: {trouble.why(now)}")
    if not said:
        return 0, ""
    more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
    return failures, said[0] + more
