"""The record of protections: which timestamp is in use, for other nodes and the next leaseholder.

::

    root's leaseholder ── TellProtections, every 20 s ─▶ 03 <root> 05 "protected" → [oldest, at]
                                                            │ each node has a replica of the root
    collection of a range on another node ◀─ up to oldest ──┤ and not beyond what was heard of
    next leaseholder of the root ◀─ inherits it, for 60 s ──┘

Protections are in the memory of the root's leaseholder (:mod:`.protections`). It tells the oldest
one, since collection stops there. To protect therefore costs no write. A node that has heard of
nothing for ``HEARD_SECONDS`` collects less and less: as if its clock stood still. A protection that
is newer than the record is of a timestamp that is not collected yet, since older ones are refused.

The node that serves the root knows better. An embedded store has no record while it is alone: its
protections end with its process.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec

from postroom.errors import CommitUnknown, Retryable
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.kv.engine import Reader
from postroom.ranges.contract import ROOT_ID, ConcernsRange, Maintenance
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.ports import Registry
from postroom.ranges.protections import Protections, held_back

TELL_SECONDS: Final = 20.0
HEARD_SECONDS: Final = 30.0
"""The time for which news count as if they came just now."""
PROTECTABLE_SECONDS: Final = 10.0
"""The time for which a timestamp can be protected yet that is told to be the oldest one."""
INHERITED_ROUNDS: Final = 3
"""The rounds of telling for which a leaseholder keeps what it has inherited."""
_KEY: Final = keys.record_key(ROOT_ID, "protected")
_END: Final = _KEY + b"\x00"


class ProtectionNews(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The record.

    Attributes:
        oldest: the oldest protected timestamp; 0: there is none.
        at: the timestamp at which that was so.
    """

    oldest: int
    at: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(ProtectionNews).decode


class TellProtections(ConcernsRange, Maintenance, frozen=True, tag="tell_protections"):
    """A request of the root's leaseholder to tell the oldest protected timestamp."""

    answer: ClassVar = None
    since: ClassVar = 2
    frees_room: ClassVar = True


def register(registry: Registry, protections: Protections) -> None:
    """Register the evaluator at the root."""

    def tell(ctx: Evaluation, _: TellProtections) -> None:
        ctx.writes[_KEY] = _encode(ProtectionNews(protections.oldest, ctx.timestamp))

    registry.commands[TellProtections] = tell


def read_news(stored: Reader) -> ProtectionNews | None:
    """Return the record as it is applied here; ``None``: there is none.

    It is the root's, so it is read past the cache of the range that asks.
    """
    packed = next((value for _, value in stored.iterate(_KEY, _END)), None)
    return None if packed is None else _decode(packed)


def limit_as_heard(
    threshold: int, now: int, news: ProtectionNews | None, *, serves_root: bool
) -> int:
    """Return how far a range may collect, by what its node has heard.

    Args:
        threshold: how far it wants to.
        now: the present, as a timestamp.
        news: the record.
        serves_root: whether the node serves the root, or no other node ever will. Then it knows
            the protections itself.
    """
    if serves_root:
        return threshold
    if news is None:
        return 0
    threshold -= max(0, now - news.at - from_seconds(HEARD_SECONDS))
    return held_back(threshold, news.oldest)


def first_to_protect(now: int, age_max: int, oldest: int) -> int:
    """Return the oldest timestamp that can be protected for a while; 0: any.

    Args:
        now: the present, as a timestamp.
        age_max: the greatest age of one that can be protected; 0: any can.
        oldest: the oldest protected timestamp, as it was heard; 0: there is none.
    """
    if not age_max:
        return 0
    first = now - age_max + from_seconds(PROTECTABLE_SECONDS)
    return min(first, oldest) if oldest else first


@dataclass(eq=False)
class ProtectionTeller:
    """The service of the root that tells the protections.

    Attributes:
        protections: those of the root.
        send: sends a request to the root, as upkeep.
        sleep: waits for a number of seconds.
        has_listeners: returns whether another node may lead another range.
        is_alone: whether no client outlives the process.
        age_max: returns the age of the oldest timestamp that can be protected; 0: any can.
    """

    protections: Protections
    send: Callable[[Any], Awaitable[Any]]
    sleep: Callable[[float], Awaitable[None]]
    has_listeners: Callable[[], bool]
    is_alone: bool
    age_max: Callable[[], int]

    async def run(self) -> None:
        """Tell them, for ever."""
        protections = self.protections
        told = protections.inherited
        for number in itertools.count(1):
            protections.age_max = self.age_max()
            await self.sleep(TELL_SECONDS)
            if number == INHERITED_ROUNDS:
                protections.inherited = 0
            oldest = protections.oldest
            if self._must_tell(is_news=oldest != told):
                with suppress(Retryable, CommitUnknown):  # the next round does it
                    await self.send(TellProtections())
                    told = oldest

    def _must_tell(self, *, is_news: bool) -> bool:
        return self.has_listeners() or (is_news and not self.is_alone)
