"""The definitions that a range has learned, by its own log; see :mod:`.news`.

::

    heard, version 8 ─▶ proposal: "learned: 8" ─▶ applied: the range's queues change
    new lease ─┬─ its node has heard of more ──▶ learns first, then serves queues
               └─ its node has heard of less ──▶ waits until its node has heard of as much
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from postroom.errors import Unavailable
from postroom.kv import keys
from postroom.kv.engine import Reader, ValueReader
from postroom.messaging.queues.definition_requests import QueueDefinition
from postroom.messaging.queues.definitions import (
    DEFINITIONS_RECORD,
    decode_version,
    encode_version,
)
from postroom.messaging.queues.news import QueueListener
from postroom.messaging.queues.records import QueueDamaged
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.evaluation import Evaluation, MustWait

if TYPE_CHECKING:
    from postroom.messaging.queues.claiming import QueueEnvironment

TakeQueue: TypeAlias = Callable[[str, QueueDefinition | None, QueueDamaged | None], None]
"""A function that takes what is defined under a name: a queue, none, or one that is damaged."""


def learned_version(reader: ValueReader, range_id: int) -> int:
    """Return the version that a range has learned; the root's own is the present one."""
    return decode_version(reader.get(keys.record_key(range_id, DEFINITIONS_RECORD)))[0]


def inherit(ctx: Evaluation, left_id: int, right_id: int) -> None:
    """Have the right half of a split know of the definitions what the left half knows."""
    version = learned_version(ctx, left_id)
    if version:
        ctx.writes[keys.record_key(right_id, DEFINITIONS_RECORD)] = encode_version(version)


class HasToLearn(Unavailable):
    """The range has yet to learn which queues there are: the request is to be sent again."""


class Learning:
    """The definitions that one range has learned. The root has nothing to learn.

    Args:
        range_id: the id of the range.
        environment: has the definitions that its node has heard of, and what waits for them.

    Attributes:
        version: the version that the range has learned.
        knows: whether memory has what the range has learned.
    """

    def __init__(self, range_id: int, environment: QueueEnvironment) -> None:
        self._environment = environment
        self._range_id = range_id
        self._is_root = range_id == ROOT_ID
        self._key = keys.record_key(range_id, DEFINITIONS_RECORD)
        self._news = environment.news
        self.version = 0
        self.knows = True
        self._changed: dict[str, int] = {}
        self._is_serving = self._is_behind = False

    def begin(self, stored: Reader, listener: QueueListener) -> None:
        """Begin with a new lease: from now on, memory has the definitions heard of by now."""
        if self._is_root:
            return
        self._is_serving = True
        self._news.listen(self._range_id, listener)
        self.version = learned_version(stored, self._range_id)
        self.knows = self._news.version == self.version
        self._is_behind = self._news.version < self.version

    def end(self) -> None:
        """Hear of nothing more, at the end of the lease."""
        self._is_serving = False
        self._changed.clear()

    def check(self) -> None:
        """Check that memory has what the range has learned.

        Raises:
            Unavailable: it has not, so nothing can be said of any queue.
        """
        if not self.knows:
            raise self._ignorance()

    def wait(self) -> None:
        """Let a read wait for what the range has yet to learn.

        Raises:
            MustWait: there is something.
        """
        if not self.knows or self.has_news:
            raise MustWait(self)

    def check_news(self) -> None:
        """Check that the range knows of all queues of which its node has heard.

        Raises:
            Unavailable: it does not, so there may be a queue that it does not know.
        """
        if not self._is_root and self.has_news:
            raise self._ignorance()

    def check_number(self, number: int) -> None:
        """Check that the range would know a queue of this number, if that was not dropped.

        Raises:
            Unavailable: the queue may be new.
        """
        if not self._is_root and (self.has_news or number > self._news.highest):
            raise self._ignorance()

    def _ignorance(self) -> HasToLearn:
        return HasToLearn(
            f"range {self._range_id} has yet to learn which queues there are; nothing was "
            "changed: try again",
            retry_after=0.02,
        )

    @property
    def has_news(self) -> bool:
        """Return whether the next proposal has something to learn."""
        return self._is_serving and self._news.version > self.version

    def hear(self, names: Iterable[str]) -> bool:
        """Hear which queues have changed; return whether memory is to begin anew."""
        if not self._is_serving:
            return False
        self._changed.update(dict.fromkeys(names, self._news.version))
        return self._is_behind and self._news.version >= self.version

    def learn(self, ctx: Evaluation, take: TakeQueue) -> int:
        """Learn the news, if there are any; return the version that the range knows then.

        Args:
            ctx: the proposal. Once it is applied, the queues of the range change.
            take: takes the queues that have changed.
        """
        if not self.has_news:
            return self.version
        news, version = self._news, self._news.version
        found = [
            (name, news.by_name.get(name), news.unreadable.get(name)) for name in self._changed
        ]
        ctx.writes[self._key] = encode_version(version)
        ctx.steps += len(found)
        ctx.after.append(lambda: self._has_learned(version, found, take))
        return version

    def _has_learned(
        self,
        version: int,
        found: list[tuple[str, QueueDefinition | None, QueueDamaged | None]],
        take: TakeQueue,
    ) -> None:
        self.version, self.knows = version, True
        for each in found:
            if self._changed.get(each[0], version) <= version:
                self._changed.pop(each[0], None)
            take(*each)
        self._environment.wake_tokens([self])
        self._environment.node_claims.learned(self._range_id)
